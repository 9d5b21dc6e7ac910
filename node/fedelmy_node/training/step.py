"""One job, from its description to its outcome. The trainer process and simulation call exactly this.

load    what can be done before the inputs are there: torch, device, data, model
run     the work itself; the same bytes in a fresh process and in one that did other jobs before
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from fedelmy_node.bundles.manifest import TensorInfo
from fedelmy_node.config.registry import BUILT_IN
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.federation import Recipe, Training
from fedelmy_node.durable import check_intact
from fedelmy_node.errors import BundleError, ConfigError, FedelmyError, RunError
from fedelmy_node.training import models, strategies
from fedelmy_node.training.acceleration import acceleration
from fedelmy_node.training.arrivals import MODEL_GROUP, Received, groups_of, mean_of, receive
from fedelmy_node.training.batches import Batches, eval_batches
from fedelmy_node.training.bundle import bundle_bytes, manifest_of, metadata_of, write_bundle
from fedelmy_node.training.checkpoint import job_key
from fedelmy_node.training.checkpoint_store import CheckpointStore
from fedelmy_node.training.data.site import SiteData, open_data
from fedelmy_node.training.data.storage import available_bytes
from fedelmy_node.training.features import embedding
from fedelmy_node.training.fit import Bench, fit, validate
from fedelmy_node.training.flat import FlatModel, Weights
from fedelmy_node.training.job import DataSpec, Emit, Input, Job, Outcome
from fedelmy_node.training.loss import Loss
from fedelmy_node.training.memory import keep_freed_memory
from fedelmy_node.training.metrics import evaluate
from fedelmy_node.training.models import build
from fedelmy_node.training.pool import distances_between
from fedelmy_node.training.progress import Progress
from fedelmy_node.training.ranks import ALONE, Ranks
from fedelmy_node.training.resume import Checkpoints
from fedelmy_node.training.seeds import derive
from fedelmy_node.training.stopping import Stopping
from fedelmy_node.training.strategies import is_weighted, settings_for, strategy_for
from fedelmy_node.training.team import meeting_place
from fedelmy_node.training.work import Work

__all__ = ["Loaded", "load", "run"]

_COMPARED: Final = 64
"""Members of a pool whose distances are told: a table of more is nothing to look at."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Loaded:
    """A job whose data and model are in memory."""

    job: Job
    """As it was asked for."""
    settings: object
    """Of the strategy, validated."""
    opened: SiteData | None
    """The site's samples; None for a merge, which needs none."""
    model: FlatModel
    """On the job's device; for prepare on the meta device, without values."""
    initial: Weights
    """The model's random values; they depend on the run's seed alone and are equal at all sites, or each site's own."""
    manifest: tuple[TensorInfo, ...]
    """The tensors that every bundle of the job's recipe has."""
    metadata: str
    """What every such bundle says of itself."""
    seconds: float
    """How long loading took."""
    ranks: Ranks = ALONE
    """Which of the processes that do the job together this one is."""

    @property
    def data(self) -> SiteData:
        assert self.opened is not None, "a merge looks at no samples"
        return self.opened

    @property
    def weighted(self) -> bool:
        """Whether bundles say how many samples their model has seen."""
        return is_weighted(self.job.recipe.strategy)

    @property
    def summary(self) -> dict[str, Any]:
        """The data of a READY event."""
        sizes = _sizes(self.opened) if self.opened else {}
        return {**sizes, "seconds": round(self.seconds, 3)}


def load(job: Job, ranks: Ranks = ALONE) -> Loaded:
    """Do everything that does not need the step's inputs."""
    began = time.monotonic()
    keep_freed_memory()
    recipe, device = job.recipe, _device(job.device, ranks)
    _set_determinism(device, recipe.training, ranks)
    settings = settings_for(recipe.strategy)
    seed = None if job.kind == "prepare" else _initial_seed(job)
    module = build(recipe.model, recipe.task, seed, code=job.code)
    model = FlatModel(module if seed is None else module.to(device))
    spec = _shared(job.data, ranks)
    opened = None if job.kind == "merge" else open_data(spec, recipe.task, seed=recipe.seed, site=job.site)
    groups = groups_of(model, 0 if is_weighted(recipe.strategy) else None)
    return Loaded(
        job=job,
        settings=settings,
        opened=opened,
        model=model,
        initial=model.weights(),
        manifest=manifest_of(groups, recipe.wire_dtype),
        metadata=metadata_of(groups),
        seconds=time.monotonic() - began,
        ranks=ranks,
    )


def run(loaded: Loaded, inputs: Sequence[Input], emit: Emit, stopping: Stopping | None = None) -> Outcome:
    """Do the job with its inputs, bundles in the order of the plan; `stopping` may end it early."""
    job, ranks = loaded.job, loaded.ranks
    _check_intact(inputs)
    _set_determinism(_device(job.device, ranks), job.recipe.training, ranks)  # other jobs may have come between
    if loaded.opened is not None and loaded.opened.left_out:
        message = f"{loaded.opened.left_out} file(s) of this site's data cannot be read and are left out"
        emit(EventKind.WARNING, {"code": "E-DATA-UNREADABLE", "message": message})
    match job.kind:
        case "prepare":
            return _prepare(loaded)
        case "evaluate":
            return _evaluate(loaded, inputs)
        case "merge":
            return _merge(loaded, inputs)
        case "train":
            ranks.join(meeting_place(job), loaded.model.theta.device)
            with _checkpoints(loaded, inputs, emit, stopping or Stopping()) as checkpoints:
                return _train(loaded, inputs, emit, checkpoints)


def _prepare(loaded: Loaded) -> Outcome:
    groups = groups_of(loaded.model, 0 if loaded.weighted else None)
    report = {
        "samples": _sizes(loaded.data),
        "class_counts": loaded.data.class_counts,
        "missing_classes": list(loaded.data.missing_classes),
        "left_out": loaded.data.left_out,
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": str(_device(loaded.job.device, Ranks(loaded.job.processes - 1, loaded.job.processes))),
        "parameters": loaded.model.parameters,
        "bundle_bytes": bundle_bytes(groups, loaded.job.recipe.wire_dtype),
    }
    if packages := [origin for origin in _origins(loaded.job.recipe) if origin not in ("", BUILT_IN)]:
        report["packages"] = packages
    if loaded.job.trial:
        from fedelmy_node.training.trial import trial  # only an examination needs it

        report["trial"] = trial(loaded.job, loaded.data, _device(loaded.job.device))
    return Outcome(manifest=loaded.manifest, metadata=loaded.metadata, report=report, private=loaded.data.unreadable)


def _origins(recipe: Recipe) -> Iterator[str]:
    """Whose the recipe's model and strategy are: packages must be of the same version at all sites."""
    yield models.INSTALLED.origin(recipe.model.name)
    yield strategies.INSTALLED.origin(recipe.strategy.name)


def _checkpoints(
    loaded: Loaded, inputs: Sequence[Input], emit: Emit, stopping: Stopping
) -> AbstractContextManager[Checkpoints | None]:
    """Where the step goes on from, and saves itself to; nothing in simulation."""
    job = loaded.job
    if job.checkpoints is None:
        return nullcontext()
    store = CheckpointStore(job.checkpoints, job_key(job, inputs, _sizes(loaded.data)))
    checkpoints = Checkpoints(store, loaded.model, emit, stopping, keeps=loaded.ranks.first)
    loaded.ranks.require_equal(checkpoints.place, loaded.model.theta.device)
    return checkpoints


def _train(loaded: Loaded, inputs: Sequence[Input], emit: Emit, checkpoints: Checkpoints | None) -> Outcome:
    job, recipe, model = loaded.job, loaded.job.recipe, loaded.model
    device, ranks = model.theta.device, loaded.ranks
    wanted, training = recipe.task.input, recipe.training
    batches = Batches(loaded.data.train, wanted, training, run_seed=recipe.seed, device=device, ranks=ranks)
    bench = Bench(
        model=model,
        batches=batches,
        validation=ranks.share(loaded.data.validation),
        input=recipe.task.input,
        training=recipe.training,
        loss=Loss(recipe.training.loss, loaded.data.train.labels, len(recipe.task.classes), device),
        run_seed=recipe.seed,
        site=job.site,
        visit=job.visit,
        emit=emit,
        progress=Progress(),
        ranks=ranks,
        speed=acceleration(device, fast=job.fast, batches=training.epochs * len(batches)),
    )
    bench.speed.prepare(model.module)
    received = _receive_all(loaded, inputs)
    work = Work(
        bench,
        initial=loaded.initial,
        received=[one.weights for one in received],
        keep=lambda *m: _keep(loaded, *m),
        fit=checkpoints.fit if checkpoints else fit,
    )
    result = strategy_for(recipe.strategy.name).train(work, loaded.settings)
    model.load(result)
    report = {
        **_sizes(loaded.data),
        "member_accuracies": work.accuracies,
        "validation_accuracy": validate(bench).accuracy,
        **_comparison(bench, work),
    }
    seen = sum(one.seen for one in received) + len(loaded.data.train)
    return replace(_written(loaded, result, seen), report=report)


def _merge(loaded: Loaded, inputs: Sequence[Input]) -> Outcome:
    """The mean of the inputs: nothing is trained, and no sample is looked at."""
    if not inputs:
        raise RunError("E-RUN-PLAN", "a merge step has no input")
    received = _receive_all(loaded, inputs)
    return _written(loaded, mean_of(received), 0)


def _written(loaded: Loaded, result: Weights, seen: int) -> Outcome:
    """The step's bundle."""
    job, model = loaded.job, loaded.model
    assert job.output is not None, "a step that makes a model says where its bundle goes"
    if not loaded.ranks.first:
        return Outcome()
    model.load(result)
    groups = groups_of(model, seen if loaded.weighted else None)
    sha256, size = write_bundle(job.output, groups, job.recipe.wire_dtype)
    return Outcome(sha256=sha256, bytes=size)


def _comparison(bench: Bench, work: Work) -> dict[str, Any]:
    """What the pool began with, and how far apart its members are."""
    began = [*work.pool, *work.received][:1]
    compared: dict[str, Any] = {}
    if began:
        bench.model.load(began[0])
        compared["received_accuracy"] = validate(bench).accuracy
    if 1 < len(work.pool) <= _COMPARED:
        compared["pool_distances"] = distances_between(work.pool)
    return compared


def _evaluate(loaded: Loaded, inputs: Sequence[Input]) -> Outcome:
    if len(inputs) != 1:
        raise RunError("E-RUN-PLAN", f"an evaluate step has one input, not {len(inputs)}")
    task, model = loaded.job.recipe.task, loaded.model
    (received,) = _receive_all(loaded, inputs)
    model.load(received.weights)
    batches = partial(eval_batches, loaded.data.test, task.input, device=model.theta.device)
    report = evaluate(model.module, batches(), task.classes)
    if loaded.job.features:
        embedded = embedding(model.module, batches(), loaded.job.features, seed=loaded.job.recipe.seed)
        report |= {"embedding": embedded} if embedded else {}
    return Outcome(report=report)


def _check_intact(inputs: Sequence[Input]) -> None:
    for position, given in enumerate(inputs):
        with _blaming(position):
            check_intact(given.path, given.sha256, "a bundle that this step needs")


def _receive_all(loaded: Loaded, inputs: Sequence[Input]) -> list[Received]:
    """The models in the inputs, which must be of this recipe, finite, and no farther away than the site allows."""
    received: list[Received] = []
    for position, given in enumerate(inputs):
        with _blaming(position):
            received.append(receive(given.path, loaded.model, loaded.manifest, loaded.metadata))
            if loaded.job.max_change is not None:
                _check_change(loaded.initial, received[-1].weights, loaded.job.max_change)
    return received


@contextmanager
def _blaming(position: int) -> Iterator[None]:
    """What goes wrong here is the fault of one input."""
    try:
        yield
    except FedelmyError as error:
        error.inputs = (position,)
        raise


def _check_change(initial: Weights, received: Weights, limit: float) -> None:
    """Summed in double precision: the square of what is far away may be too large for a float."""
    length = torch.linalg.vector_norm(initial.vector, dtype=torch.float64)
    distance = torch.linalg.vector_norm(received.vector - initial.vector, dtype=torch.float64)
    change = float(distance / length)
    if not change <= limit:
        message = f"a received model is {change:.3g} times its initial length away from where the run began"
        raise BundleError("E-BUNDLE-CHANGE", f"{message}; this site takes up to {limit:g}")


def _keep(loaded: Loaded, member: int, weights: Weights) -> None:
    """Write a pool member beside the step, if the site asked for that."""
    if loaded.job.keep_pool is not None and loaded.ranks.first:
        loaded.model.load(weights)
        loaded.job.keep_pool.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = loaded.job.keep_pool / f"member-{member:03d}.safetensors"
        write_bundle(path, {MODEL_GROUP: loaded.model.state_dict()}, "float32")


def _device(name: str, ranks: Ranks = ALONE) -> torch.device:
    """The device of that name, which this machine must have; `auto` is the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        hint = "Use cpu, cuda, cuda:N or auto."
        raise ConfigError("E-CONFIG-DEVICE", f"{name!r} is not a device", hint=hint)
    device = ranks.device(torch.device(name))
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError("E-CONFIG-DEVICE", f"this machine has no device '{device}' that torch can use")
    return device


def _set_determinism(device: torch.device, training: Training, ranks: Ranks) -> None:
    """Equal bytes on a CPU are promised; a GPU is left as fast as it is."""
    torch.set_num_threads(max(1, training.threads // ranks.count))
    torch.use_deterministic_algorithms(device.type == "cpu")
    # Filling every new tensor with NaN is for finding faults, and costs a pass over memory each time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _shared(data: DataSpec, ranks: Ranks) -> DataSpec:
    """The data for one of several processes, each of which holds all samples: memory is shared out."""
    if ranks.count == 1:
        return data
    memory = available_bytes() // 2 if data.memory_bytes is None else data.memory_bytes
    return replace(data, memory_bytes=memory // ranks.count)


def _initial_seed(job: Job) -> int:
    """Of the model at random: the same at all sites, unless the federation wants each to have its own."""
    whose = () if job.recipe.model.initial == "shared" else (job.site,)
    return derive(job.recipe.seed, "init", *whose)


def _sizes(data: SiteData) -> dict[str, int]:
    return {"train": len(data.train), "validation": len(data.validation), "test": len(data.test)}
