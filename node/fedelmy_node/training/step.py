"""One job, from its description to its outcome; the trainer process and simulation call this.

load   everything that does not need the inputs: torch, device, data, model
run    the computation; a fresh process and one that ran other jobs give the same bytes
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

from fedelmy_node.config.registry import BUILT_IN
from fedelmy_node.domain.artifact import TensorInfo
from fedelmy_node.domain.errors import BundleError, ConfigError, FedelmyError, RunError
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.federation import Training
from fedelmy_node.store.durable_files import check_intact
from fedelmy_node.training import models, strategies
from fedelmy_node.training.batches import Batches, eval_batches
from fedelmy_node.training.bundle_file import bundle_bytes, manifest_of, metadata_of, write_bundle
from fedelmy_node.training.checkpoint import job_key
from fedelmy_node.training.checkpoint_store import CheckpointStore
from fedelmy_node.training.checkpointing import Checkpoints
from fedelmy_node.training.data.samples import available_bytes
from fedelmy_node.training.data.site_data import SiteData, open_data
from fedelmy_node.training.distributed import ALONE, Ranks, rendezvous_file
from fedelmy_node.training.epoch_counter import Progress
from fedelmy_node.training.evaluation.features import embedding
from fedelmy_node.training.evaluation.scoring import evaluate
from fedelmy_node.training.fit import Bench, fit, validate
from fedelmy_node.training.job import DataSpec, Emit, Input, Job, Outcome
from fedelmy_node.training.models import build
from fedelmy_node.training.objective import Loss
from fedelmy_node.training.seeds import derive
from fedelmy_node.training.step_inputs import MODEL_GROUP, Received, groups_of, mean_of, receive
from fedelmy_node.training.stop_signal import StopSignal
from fedelmy_node.training.strategies import is_weighted, settings_for, strategy_for
from fedelmy_node.training.strategies.context import Work
from fedelmy_node.training.torch_runtime import acceleration, keep_freed_memory
from fedelmy_node.training.weights import FlatModel, Weights, distances_between

_MAX_COMPARED: Final = 64
"""Larger pools get no table of distances: it would be unreadable."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Loaded:
    """A job whose data and model are in memory."""

    job: Job
    settings: object
    """The strategy's settings, validated."""
    opened: SiteData | None
    """The site's samples; None for a merge."""
    model: FlatModel
    """On the job's device; for prepare on the meta device, without values."""
    initial: Weights
    """Random values from the run's seed, shared by all sites unless each has its own."""
    manifest: tuple[TensorInfo, ...]
    metadata: str
    """The metadata of every bundle of the recipe."""
    seconds: float
    """How long loading took."""
    ranks: Ranks = ALONE

    @property
    def data(self) -> SiteData:
        assert self.opened is not None, "a merge has no samples"
        return self.opened

    @property
    def weighted(self) -> bool:
        """Whether bundles have a sample count."""
        return is_weighted(self.job.recipe.strategy)

    @property
    def sizes(self) -> dict[str, int]:
        data = self.data
        sizes = {"train": len(data.train), "validation": len(data.validation)}
        return {**sizes, "test": len(data.test)}

    @property
    def summary(self) -> dict[str, Any]:
        """The data of a READY event."""
        return {**(self.sizes if self.opened else {}), "seconds": round(self.seconds, 3)}


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
    opened = None
    if job.kind != "merge":
        data = _per_process(job.data, ranks)
        opened = open_data(data, recipe.task, seed=recipe.seed, site=job.site)
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


def run(
    loaded: Loaded, inputs: Sequence[Input], emit: Emit, stop: StopSignal | None = None
) -> Outcome:
    """Compute the job from its inputs, in the plan's order; `stop` may end it early."""
    job, ranks = loaded.job, loaded.ranks
    _check_intact(inputs)
    # Again, because other jobs may have run in between.
    _set_determinism(_device(job.device, ranks), job.recipe.training, ranks)
    if loaded.opened is not None and loaded.opened.left_out:
        files = f"{loaded.opened.left_out} file(s) of this site's data"
        message = f"{files} cannot be read and are left out"
        emit(EventKind.WARNING, {"code": "E-DATA-UNREADABLE", "message": message})
    match job.kind:
        case "prepare":
            return _prepare(loaded)
        case "evaluate":
            return _evaluate(loaded, inputs)
        case "merge":
            return _merge(loaded, inputs)
        case "train":
            ranks.join(rendezvous_file(job), loaded.model.theta.device)
            with _checkpoints(loaded, inputs, emit, stop or StopSignal()) as checkpoints:
                return _train(loaded, inputs, emit, checkpoints)


def _prepare(loaded: Loaded) -> Outcome:
    job, data, recipe = loaded.job, loaded.data, loaded.job.recipe
    groups = groups_of(loaded.model, 0 if loaded.weighted else None)
    report = {
        "samples": loaded.sizes,
        "class_counts": data.class_counts,
        "missing_classes": list(data.missing_classes),
        "left_out": data.left_out,
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": str(_device(job.device, Ranks(job.processes - 1, job.processes))),
        "parameters": loaded.model.parameters,
        "bundle_bytes": bundle_bytes(groups, recipe.wire_dtype),
    }
    # Packages of model and strategy must have the same version at all sites.
    origins = (
        models.INSTALLED.origin(recipe.model.name),
        strategies.INSTALLED.origin(recipe.strategy.name),
    )
    if packages := [origin for origin in origins if origin not in ("", BUILT_IN)]:
        report["packages"] = packages
    if job.trial:
        from fedelmy_node.training.trial import trial  # rarely needed

        report["trial"] = trial(job, data, _device(job.device))
    manifest, metadata = loaded.manifest, loaded.metadata
    return Outcome(manifest=manifest, metadata=metadata, report=report, private=data.unreadable)


def _checkpoints(
    loaded: Loaded, inputs: Sequence[Input], emit: Emit, stop: StopSignal
) -> AbstractContextManager[Checkpoints | None]:
    """The step's checkpoints; none in simulation."""
    job = loaded.job
    if job.checkpoints is None:
        return nullcontext()
    store = CheckpointStore(job.checkpoints, job_key(job, inputs, loaded.sizes))
    checkpoints = Checkpoints(store, loaded.model, emit, stop, writes=loaded.ranks.first)
    loaded.ranks.require_equal(checkpoints.place, loaded.model.theta.device)
    return checkpoints


def _train(
    loaded: Loaded, inputs: Sequence[Input], emit: Emit, checkpoints: Checkpoints | None
) -> Outcome:
    job, recipe, model, data = loaded.job, loaded.job.recipe, loaded.model, loaded.data
    device, ranks, seed = model.theta.device, loaded.ranks, loaded.job.recipe.seed
    wanted, training, classes = recipe.task.input, recipe.training, len(recipe.task.classes)
    batches = Batches(data.train, wanted, training, run_seed=seed, device=device, ranks=ranks)
    bench = Bench(
        model=model,
        batches=batches,
        validation=ranks.share(data.validation),
        input=wanted,
        training=training,
        loss=Loss(training.loss, data.train.labels, classes, device),
        run_seed=seed,
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
        keep=partial(_keep_member, loaded),
        fit=checkpoints.fit if checkpoints else fit,
    )
    result = strategy_for(recipe.strategy.name).train(work, loaded.settings)
    model.load(result)
    report = {
        **loaded.sizes,
        "member_accuracies": work.accuracies,
        "validation_accuracy": validate(bench).accuracy,
        **_comparison(bench, work),
    }
    seen = sum(one.seen for one in received) + len(data.train)
    return replace(_written(loaded, result, seen), report=report)


def _merge(loaded: Loaded, inputs: Sequence[Input]) -> Outcome:
    """Average the inputs; uses no samples."""
    if not inputs:
        raise RunError("E-RUN-PLAN", "a merge step has no input")
    return _written(loaded, mean_of(_receive_all(loaded, inputs)), 0)


def _written(loaded: Loaded, result: Weights, seen: int) -> Outcome:
    """Write the step's bundle."""
    job, model = loaded.job, loaded.model
    assert job.output is not None, "train and merge steps have an output"
    if not loaded.ranks.first:
        return Outcome()
    model.load(result)
    groups = groups_of(model, seen if loaded.weighted else None)
    sha256, size = write_bundle(job.output, groups, job.recipe.wire_dtype)
    return Outcome(sha256=sha256, bytes=size)


def _comparison(bench: Bench, work: Work) -> dict[str, Any]:
    """The accuracy of the pool's first model, and the distances between its members."""
    compared: dict[str, Any] = {}
    if began := [*work.pool, *work.received][:1]:
        bench.model.load(began[0])
        compared["received_accuracy"] = validate(bench).accuracy
    if 1 < len(work.pool) <= _MAX_COMPARED:
        compared["pool_distances"] = distances_between(work.pool)
    return compared


def _evaluate(loaded: Loaded, inputs: Sequence[Input]) -> Outcome:
    if len(inputs) != 1:
        raise RunError("E-RUN-PLAN", f"an evaluate step has one input, not {len(inputs)}")
    job, task, model = loaded.job, loaded.job.recipe.task, loaded.model
    (received,) = _receive_all(loaded, inputs)
    model.load(received.weights)
    batches = partial(eval_batches, loaded.data.test, task.input, device=model.theta.device)
    report = evaluate(model.module, batches(), task.classes)
    if job.features:
        embedded = embedding(model.module, batches(), job.features, seed=job.recipe.seed)
        report |= {"embedding": embedded} if embedded else {}
    return Outcome(report=report)


def _check_intact(inputs: Sequence[Input]) -> None:
    for position, given in enumerate(inputs):
        with _blaming(position):
            check_intact(given.path, given.sha256, "a bundle that this step needs")


def _receive_all(loaded: Loaded, inputs: Sequence[Input]) -> list[Received]:
    """Read the inputs; they must fit the recipe, be finite, and be within `max_change`."""
    received: list[Received] = []
    for position, given in enumerate(inputs):
        with _blaming(position):
            received.append(receive(given.path, loaded.model, loaded.manifest, loaded.metadata))
            if loaded.job.max_change is not None:
                _check_change(loaded.initial, received[-1].weights, loaded.job.max_change)
    return received


@contextmanager
def _blaming(position: int) -> Iterator[None]:
    """Attribute errors in this block to one input."""
    try:
        yield
    except FedelmyError as error:
        error.inputs = (position,)
        raise


def _check_change(initial: Weights, received: Weights, limit: float) -> None:
    # In double precision: the square of a large distance may overflow a float.
    length = torch.linalg.vector_norm(initial.vector, dtype=torch.float64)
    distance = torch.linalg.vector_norm(received.vector - initial.vector, dtype=torch.float64)
    change = float(distance / length)
    if not change <= limit:
        message = f"a received model is {change:.3g} times the initial model's norm away from it"
        raise BundleError("E-BUNDLE-CHANGE", f"{message}; this site accepts up to {limit:g}")


def _keep_member(loaded: Loaded, member: int, weights: Weights) -> None:
    """Save a pool member if the site keeps them."""
    directory = loaded.job.keep_pool
    if directory is not None and loaded.ranks.first:
        loaded.model.load(weights)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = directory / f"member-{member:03d}.safetensors"
        write_bundle(path, {MODEL_GROUP: loaded.model.state_dict()}, "float32")


def _device(name: str, ranks: Ranks = ALONE) -> torch.device:
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


def _set_determinism(device: torch.device, training: Training, ranks: Ranks) -> None:
    """A CPU gives reproducible bytes; a GPU keeps its speed."""
    torch.set_num_threads(max(1, training.threads // ranks.count))
    torch.use_deterministic_algorithms(device.type == "cpu")
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
