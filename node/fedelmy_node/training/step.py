"""Run a loaded job: from its inputs to its outcome. Trainer processes and simulation call this.

A fresh process and one that ran other jobs give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from fedelmy_node.bundle.verification import check_bundle
from fedelmy_node.config.registry import BUILT_IN
from fedelmy_node.domain.artifact import BundleSpec
from fedelmy_node.domain.errors import BundleError, FedelmyError, RunError
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.federation import WireDtype
from fedelmy_node.domain.names import site_of
from fedelmy_node.domain.step_traits import MODEL, STATE
from fedelmy_node.store.durable_files import check_intact
from fedelmy_node.training import models, strategies
from fedelmy_node.training.batches import Batches, eval_batches
from fedelmy_node.training.bundle_file import (
    Groups,
    bundle_bytes,
    is_model,
    manifest_of,
    metadata_of,
    read_bundle,
    write_bundle,
)
from fedelmy_node.training.checkpoint import job_key
from fedelmy_node.training.checkpoint_store import CheckpointStore
from fedelmy_node.training.checkpointing import Checkpoints
from fedelmy_node.training.class_limit import check_smallest_class
from fedelmy_node.training.context import Artifact, Context, Outputs
from fedelmy_node.training.distributed import Ranks, rendezvous_file
from fedelmy_node.training.epoch_counter import Progress
from fedelmy_node.training.evaluation.features import embedding
from fedelmy_node.training.evaluation.result_models import one_model, result_module
from fedelmy_node.training.evaluation.scoring import evaluate, validated
from fedelmy_node.training.fit import Bench, fit, validate
from fedelmy_node.training.frozen_features import Features, head_bench, site_features
from fedelmy_node.training.job import Emit, Input, Outcome
from fedelmy_node.training.loading import Loaded, device_for, set_determinism
from fedelmy_node.training.loops import unsaved
from fedelmy_node.training.loss import Loss
from fedelmy_node.training.operations import Operation
from fedelmy_node.training.stop_signal import StopSignal
from fedelmy_node.training.strategies import head_of, operations_of, result_of
from fedelmy_node.training.torch_runtime import acceleration
from fedelmy_node.training.weights import Weights, distances_between

_MAX_COMPARED: Final = 64
"""Larger pools get no table of distances: it would be unreadable."""


def run(
    loaded: Loaded, inputs: Sequence[Input], emit: Emit, stop: StopSignal | None = None
) -> Outcome:
    """Compute the job from its inputs, in the plan's order; `stop` may end it early."""
    job, ranks = loaded.job, loaded.ranks
    _check_intact(inputs)
    # Again, because other jobs may have run in between.
    set_determinism(device_for(job.device, ranks), job.recipe.training, ranks)
    if loaded.opened is not None and loaded.opened.left_out:
        files = f"{loaded.opened.left_out} file(s) of this site's data"
        message = f"{files} cannot be read and are left out"
        emit(EventKind.WARNING, {"code": "E-DATA-UNREADABLE", "message": message})
    if loaded.operation is None:
        return _prepare(loaded)
    if loaded.opened is not None:
        check_smallest_class(job.site, loaded.opened.smallest_class, job.min_class_samples)
    if loaded.operation.traits.trains and loaded.operation.fits:
        ranks.join(rendezvous_file(job), loaded.model.theta.device)
    with _checkpoints(loaded, inputs, emit, stop or StopSignal()) as checkpoints:
        return _compute(loaded, loaded.operation, inputs, emit, checkpoints)


def _prepare(loaded: Loaded) -> Outcome:
    job, data, recipe = loaded.job, loaded.data, loaded.job.recipe
    operations = operations_of(recipe.strategy.name)
    made = {
        name: each.output(loaded.specs)
        for name, each in operations.items()
        if each.traits.has_output
    }
    report = {
        "samples": loaded.sizes,
        "class_counts": data.class_counts,
        "missing_classes": list(data.missing_classes),
        "smallest_class": data.smallest_class,
        "left_out": data.left_out,
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": str(device_for(job.device, Ranks(job.processes - 1, job.processes))),
        "parameters": loaded.model.parameters,
        "bundle_bytes": max(
            bundle_bytes(groups, recipe.wire_dtype, recipe.model.frozen) for groups in made.values()
        ),
    }
    if states := [each.state(loaded.specs) for each in operations.values() if each.state]:
        report["state_bytes"] = max(map(bundle_bytes, states))
    if recipe.model.weights is not None:
        frozen = (p.numel() for p in loaded.model.module.parameters() if not p.requires_grad)
        report |= {"frozen_parameters": sum(frozen), "new_tensors": list(loaded.new)}
    # Packages of model and strategy must have the same version at all sites.
    origins = (
        models.INSTALLED.origin(recipe.model.name),
        strategies.INSTALLED.origin(recipe.strategy.name),
    )
    if packages := [origin for origin in origins if origin not in ("", BUILT_IN)]:
        report["packages"] = packages
    if job.trial:
        from fedelmy_node.training.trial import trial  # rarely needed

        report["trial"] = trial(job, data, device_for(job.device))
    specs = {name: _bundle_spec(groups, loaded) for name, groups in made.items()}
    return Outcome(specs=specs, report=report, private=data.unreadable)


def _bundle_spec(groups: Groups, loaded: Loaded) -> BundleSpec:
    manifest = manifest_of(groups, loaded.job.recipe.wire_dtype)
    metadata = metadata_of(groups, loaded.job.recipe.model.frozen)
    return BundleSpec(manifest=manifest, metadata=metadata)


def _checkpoints(
    loaded: Loaded, inputs: Sequence[Input], emit: Emit, stop: StopSignal
) -> AbstractContextManager[Checkpoints | None]:
    """The step's checkpoints; none in simulation."""
    job = loaded.job
    if job.checkpoints is None:
        return nullcontext()
    key = job_key(job, inputs, loaded.sizes if loaded.opened else {})
    store = CheckpointStore(job.checkpoints, key, job.recipe.training)
    checkpoints = Checkpoints(store, loaded.model, emit, stop, writes=loaded.ranks.first)
    loaded.ranks.require_equal(checkpoints.place, loaded.model.theta.device)
    return checkpoints


def _compute(
    loaded: Loaded,
    operation: Operation,
    inputs: Sequence[Input],
    emit: Emit,
    checkpoints: Checkpoints | None,
) -> Outcome:
    """Run the operation, and write what it gives."""
    reads = operation.traits.reads_data and operation.traits.has_output
    bench = _bench(loaded, emit) if reads and operation.fits else None
    received = _receive_all(loaded, [given for given in inputs if given.role != STATE])
    state = next((given for given in inputs if given.role == STATE), None)
    context = Context(
        model=loaded.model,
        initial=loaded.initial,
        inputs=received,
        state=read_bundle(state.path) if state else None,
        reads=bench,
        read_features=partial(_features, loaded) if reads else None,
        known=loaded.specs,
        secret=bytes.fromhex(loaded.job.secret),
        keep=partial(_keep_member, loaded),
        fit_one=checkpoints.fit if checkpoints else fit,
        loop_one=checkpoints.loop if checkpoints else partial(unsaved, emit=emit),
        place=(loaded.job.recipe.seed, loaded.job.site, loaded.job.visit),
        test=partial(_evaluate, loaded, received),
    )
    outputs = operation.run(context, loaded.settings)
    report = dict(outputs.report)
    if bench is not None and outputs.model is not None:
        bench.model.load(outputs.model)
        found = validate(bench)
        classes = loaded.job.recipe.task.classes
        report = {
            **loaded.sizes,
            "member_accuracies": context.accuracies,
            "validation_accuracy": found.accuracy,
            "validated_classes": found.by_class(classes),
            **_comparison(bench, context, classes),
            **report,
        }
    return replace(_written(loaded, operation, outputs), report=report)


def _bench(loaded: Loaded, emit: Emit) -> Bench:
    job, recipe, model, data = loaded.job, loaded.job.recipe, loaded.model, loaded.data
    device, ranks, seed = model.theta.device, loaded.ranks, loaded.job.recipe.seed
    training, classes = recipe.training, recipe.task.classes
    head = head_bench(model, job, data, acceleration(device, fast=job.fast, batches=0))
    wanted = head.input if head else recipe.task.input
    samples, validation = (head.train, head.validation) if head else (data.train, data.validation)
    batches = Batches(samples, wanted, training, run_seed=seed, device=device, ranks=ranks)
    bench = Bench(
        model=head.model if head else model,
        batches=batches,
        validation=ranks.share(validation),
        input=wanted,
        training=training,
        loss=Loss(training, samples.labels, classes, device),
        run_seed=seed,
        site=job.site,
        visit=job.visit,
        emit=emit,
        progress=Progress(),
        ranks=ranks,
        speed=acceleration(
            device,
            fast=job.fast,
            batches=training.epochs * len(batches),
            precision=training.precision,
        ),
    )
    bench.speed.prepare(bench.model.module)
    return bench


def _features(loaded: Loaded) -> Features:
    speed = acceleration(loaded.model.theta.device, fast=loaded.job.fast, batches=0)
    return site_features(loaded.model, loaded.specs.head, loaded.job, loaded.data, speed)


def _written(loaded: Loaded, operation: Operation, outputs: Outputs) -> Outcome:
    """Write the step's bundle and its state."""
    job, wire = loaded.job, loaded.job.recipe.wire_dtype
    if not loaded.ranks.first:
        return Outcome()
    outcome = Outcome()
    if operation.traits.has_output:
        assert job.output is not None, "a step with an output writes it"
        groups = dict(outputs.groups)
        if outputs.model is not None:
            loaded.model.load(outputs.model)
            groups = {MODEL: loaded.model.state_dict(), **groups}
        _check_spec(operation.output(loaded.specs), groups, f"operation {job.kind}", wire)
        sha256, size = write_bundle(job.output, groups, wire, job.recipe.model.frozen)
        outcome = replace(outcome, sha256=sha256, bytes=size)
    if outputs.state is not None and operation.state is None:
        raise RunError("E-RUN-PLAN", f"operation {job.kind} returned a state, but declares none")
    if operation.state is not None and job.state is not None and outputs.state is not None:
        _check_spec(operation.state(loaded.specs), outputs.state, f"the state of {job.kind}")
        sha256, size = write_bundle(job.state, outputs.state)
        outcome = replace(outcome, state_sha256=sha256, state_bytes=size)
    return outcome


def _check_spec(declared: Groups, groups: Groups, what: str, wire: WireDtype | None = None) -> None:
    """Refuse what an operation gives if it is not what it declared: a receiver would, too.

    As it is stored: a model that is passed on may have the wire type already.
    """
    same = manifest_of(declared, wire) == manifest_of(groups, wire)
    if not same or metadata_of(declared) != metadata_of(groups):
        raise RunError("E-RUN-PLAN", f"{what} returned tensors other than those it declares")


def _comparison(bench: Bench, context: Context, classes: Sequence[str]) -> dict[str, Any]:
    """The accuracy of the pool's first model, and the distances between its members."""
    compared: dict[str, Any] = {}
    if began := [*context.pool, *context.received][:1]:
        bench.model.load(began[0])
        validated = validate(bench)
        compared["received_accuracy"] = validated.accuracy
        if context.received:
            compared["received_classes"] = validated.by_class(classes)
    if 1 < len(context.pool) <= _MAX_COMPARED:
        compared["pool_distances"] = distances_between(context.pool)
    return compared


def _evaluate(loaded: Loaded, received: Sequence[Artifact]) -> Outputs:
    """Evaluate the run's result on the site's test data."""
    if len(received) != 1:
        raise RunError("E-RUN-PLAN", f"an evaluate step has one input, not {len(received)}")
    job, recipe, device = loaded.job, loaded.job.recipe, loaded.model.theta.device
    spare = iter([loaded.model])

    def make(state: Mapping[str, Tensor]) -> nn.Module:
        """Fill the step's own model, then more of them."""
        model = next(spare, None)
        if model is None:
            module = one_model(
                recipe.model,
                recipe.task,
                state,
                code=job.code,
                weights=job.weights,
                make_head=head_of(recipe.strategy, recipe.seed),
            )
            return module.to(device)
        model.load_state_dict(state)
        return model.module

    module = result_module(result_of(recipe.strategy.name), make, received[0].groups).to(device)
    batches = partial(eval_batches, loaded.data.test, recipe.task.input, device=device)
    report = evaluate(module, batches(), recipe.task.classes)
    validation = eval_batches(loaded.data.validation, recipe.task.input, device=device)
    report |= validated(module, validation, recipe.task.classes)
    if job.features:
        embedded = embedding(module, batches(), job.features, seed=recipe.seed)
        report |= {"embedding": embedded} if embedded else {}
    return Outputs(report=report)


def _check_intact(inputs: Sequence[Input]) -> None:
    for position, given in enumerate(inputs):
        with _blaming(position):
            check_intact(given.path, given.sha256, "a bundle that this step needs")


def _receive_all(loaded: Loaded, inputs: Sequence[Input]) -> list[Artifact]:
    """Read the inputs; they must fit their specs, be finite, and be within `max_change`."""
    received: list[Artifact] = []
    for position, given in enumerate(inputs):
        with _blaming(position):
            received.append(_receive(loaded, given))
    return received


def _receive(loaded: Loaded, given: Input) -> Artifact:
    spec = loaded.operation_of(given.operation).output(loaded.specs)
    expected = _bundle_spec(spec, loaded)
    check_bundle(given.path, expected.manifest, expected.metadata)
    groups = read_bundle(given.path)
    if loaded.job.max_change is not None:
        for name in filter(is_model, groups):
            loaded.model.load_state_dict(groups[name])
            _check_change(loaded.initial.vector, loaded.model.theta, loaded.job.max_change)
    weights = None
    if MODEL in groups:
        loaded.model.load_state_dict(groups[MODEL])
        weights = loaded.model.weights()
    sites = frozenset(map(site_of, given.contributors))
    return Artifact(role=given.role, groups=groups, weights=weights, sites=sites)


@contextmanager
def _blaming(position: int) -> Iterator[None]:
    """Attribute errors in this block to one input."""
    try:
        yield
    except FedelmyError as error:
        error.inputs = (position,)
        raise


def _check_change(initial: Tensor, received: Tensor, limit: float) -> None:
    # In double precision: the square of a large distance may overflow a float.
    length = torch.linalg.vector_norm(initial, dtype=torch.float64)
    distance = torch.linalg.vector_norm(received - initial, dtype=torch.float64)
    change = float(distance / length)
    if not change <= limit:
        message = f"a received model differs from the initial one by {change:.3g} times its norm"
        raise BundleError("E-BUNDLE-CHANGE", f"{message}; this site accepts up to {limit:g}")


def _keep_member(loaded: Loaded, member: int, weights: Weights) -> None:
    """Save a pool member if the site keeps them."""
    directory = loaded.job.keep_pool
    if directory is not None and loaded.ranks.first:
        loaded.model.load(weights)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = directory / f"member-{member:03d}.safetensors"
        groups = {MODEL: loaded.model.state_dict()}
        write_bundle(path, groups, "float32", loaded.job.recipe.model.frozen)
