"""Load a job: its device, data and model, everything that does not need its inputs."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedelmy_node.domain.errors import ConfigError, RunError
from fedelmy_node.domain.federation import Training
from fedelmy_node.domain.step_traits import DELIVER, TRAIN
from fedelmy_node.training.context import Specs
from fedelmy_node.training.data.samples import available_bytes
from fedelmy_node.training.data.site_data import SiteData, open_data
from fedelmy_node.training.distributed import ALONE, Ranks
from fedelmy_node.training.job import PREPARE, DataSpec, Job
from fedelmy_node.training.models.recipe_model import recipe_model
from fedelmy_node.training.operations import Operation
from fedelmy_node.training.seeds import derive
from fedelmy_node.training.strategies import head_of, operations_of, result_of, settings_for
from fedelmy_node.training.torch_runtime import keep_freed_memory
from fedelmy_node.training.weights import FlatModel, Weights


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Loaded:
    """A job whose data and model are in memory."""

    job: Job
    settings: object
    """The strategy's settings, validated."""
    operation: Operation | None
    """None: the job is to prepare."""
    opened: SiteData | None
    """The site's samples; None if the operation does not read them."""
    model: FlatModel
    """On the job's device; for prepare on the meta device, without values."""
    initial: Weights
    """Random values from the run's seed, shared by all sites unless each has its own."""
    specs: Specs
    new: tuple[str, ...]
    """Tensors with random values although the recipe starts from weights: a head, or none."""
    seconds: float
    """How long loading took."""
    ranks: Ranks = ALONE

    @property
    def data(self) -> SiteData:
        assert self.opened is not None, "this operation reads no samples"
        return self.opened

    @property
    def sizes(self) -> dict[str, int]:
        data = self.data
        sizes = {"train": len(data.train), "validation": len(data.validation)}
        return {**sizes, "test": len(data.test)}

    @property
    def summary(self) -> dict[str, Any]:
        """The data of a READY event."""
        return {**(self.sizes if self.opened else {}), "seconds": round(self.seconds, 3)}

    def operation_of(self, name: str) -> Operation:
        """Return the operation that made a bundle; a delivered one is the run's result."""
        strategy = self.job.recipe.strategy.name
        name = result_of(strategy).operation or TRAIN if name == DELIVER else name
        operations = operations_of(strategy)
        if name not in operations:
            raise RunError("E-RUN-PLAN", f"strategy {strategy!r} has no operation {name[:40]!r}")
        return operations[name]


def load(job: Job, ranks: Ranks = ALONE) -> Loaded:
    """Do everything that does not need the step's inputs."""
    began = time.monotonic()
    keep_freed_memory()
    recipe, device = job.recipe, device_for(job.device, ranks)
    set_determinism(device, recipe.training, ranks)
    settings = settings_for(recipe.strategy)
    operations = operations_of(recipe.strategy.name)
    if job.kind != PREPARE and job.kind not in operations:
        message = f"strategy {recipe.strategy.name!r} has no operation {job.kind[:40]!r}"
        raise RunError("E-RUN-PLAN", message)
    operation = operations.get(job.kind)
    seed = None if operation is None else _initial_seed(job)
    made = recipe_model(
        recipe.model,
        recipe.task,
        seed,
        code=job.code,
        weights=job.weights,
        make_head=head_of(recipe.strategy, recipe.seed),
    )
    model = FlatModel(made.module if seed is None else made.module.to(device), made.frozen)
    opened = None
    if operation is None or operation.traits.reads_data:
        data = _per_process(job.data, ranks)
        opened = open_data(data, recipe.task, seed=recipe.seed, site=job.site)
    return Loaded(
        job=job,
        settings=settings,
        operation=operation,
        opened=opened,
        model=model,
        initial=model.weights(),
        specs=Specs(recipe=recipe, settings=settings, module=model.state_dict(), head=made.head),
        new=made.new,
        seconds=time.monotonic() - began,
        ranks=ranks,
    )


def device_for(name: str, ranks: Ranks = ALONE) -> torch.device:
    """The named device, which must exist; `auto` is the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        hint = "Use cpu, cuda, cuda:N or auto."
        raise ConfigError("E-CONFIG-DEVICE", f"{name!r} is not a device", hint=hint)
    device = ranks.device(torch.device(name))
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        message = f"this machine has no device '{device}' that torch can use"
        raise ConfigError("E-CONFIG-DEVICE", message)
    return device


def set_determinism(device: torch.device, training: Training, ranks: Ranks) -> None:
    """A CPU gives reproducible bytes; a GPU keeps its speed."""
    torch.set_num_threads(max(1, training.threads // ranks.count))
    # `use_deterministic_algorithms` does the same, but imports torch's compiler for its settings.
    torch.set_deterministic_debug_mode("error" if device.type == "cpu" else "default")
    # Filling new tensors with NaN is for debugging, and costs a pass over memory each time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _per_process(data: DataSpec, ranks: Ranks) -> DataSpec:
    """Divide the memory limit: each of several processes holds all samples."""
    if ranks.count == 1:
        return data
    memory = available_bytes() // 2 if data.memory_bytes is None else data.memory_bytes
    return replace(data, memory_bytes=memory // ranks.count)


def _initial_seed(job: Job) -> int:
    """The initial model's seed: shared by all sites, or each site's own."""
    own = () if job.recipe.model.initial == "shared" else (job.site,)
    return derive(job.recipe.seed, "init", *own)
