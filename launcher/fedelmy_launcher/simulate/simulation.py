"""Simulation: the same plan and training code in one process, without network, same bytes."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from fedelmy_node.domain.errors import DataError
from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import SiteName, StepId, file_stem
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.plan_steps import Edge, Step, in_order
from fedelmy_node.domain.step_traits import DELIVER, EVALUATE, STATE, operation_of
from fedelmy_node.store.durable_files import cannot_write, file_sha256
from fedelmy_node.training.data import parse_source
from fedelmy_node.training.job import CacheSpec, DataSpec, Input, Job, Outcome

_FEATURES_BYTES: Final = 4 << 30


def data_of(federation: Federation) -> Mapping[SiteName, DataSpec]:
    """Each site's data as given under [[sites]] in federation.toml."""
    specs = {}
    for member in federation.members:
        if member.data is None:
            message = f"simulation needs data for site {member.name}"
            hint = f'Give --data {member.name}=KIND[:PATH], or set data = "..." in its [[sites]].'
            raise DataError("E-DATA-SOURCE", message, hint=hint)
        parse_source(member.data)
        indices = Path(member.indices) if member.indices else None
        specs[member.name] = DataSpec(source=member.data, indices=indices)
    return specs


class Simulation:
    """Execute a plan in this process; `emit` gets the events that nodes would journal."""

    def __init__(
        self,
        plan: Plan,
        data: Mapping[SiteName, DataSpec],
        directory: Path,
        emit: Callable[[Event], None],
        *,
        code: Collection[str] = (),
        weights: Path | None = None,
    ) -> None:
        """`code`: the allowed functions as `module:function`; `weights`: of all sites."""
        self._plan = plan
        self._data = data
        self._directory = directory
        self._emit = emit
        self._code = tuple(code)
        self._weights = weights
        self._features: CacheSpec | None = None
        self._seq = 0
        self._bundles: dict[StepId, tuple[Path, str, int]] = {}
        self._states: dict[StepId, tuple[Path, str]] = {}
        self._contributors: dict[StepId, set[StepId]] = {}
        self._edges_to: dict[StepId, list[Edge]] = {}
        for edge in plan.edges:
            self._edges_to.setdefault(edge.target, []).append(edge)

    def run(self) -> None:
        """Execute every step, inputs before outputs."""
        from fedelmy_node.training.data.source_cache import cached_sources
        from fedelmy_node.training.models import build

        recipe = self._plan.recipe
        build(recipe.model, recipe.task, None, code=self._code)  # tests it, as every site does
        # The sites often share one source; a site that trains again has the same features.
        with cached_sources(), tempfile.TemporaryDirectory(prefix="fedelmy-") as directory:
            self._features = CacheSpec(directory=Path(directory), limit_bytes=_FEATURES_BYTES)
            self._run()
            self._features = None

    def _run(self) -> None:
        sites = dict.fromkeys(step.site for step in self._plan.steps)
        for site in sites:
            self._event(site, None, EventKind.RUN, {"state": RunState.RUNNING})
        for step in in_order(self._plan.steps):
            self._receive(step)
            self._contributors[step.id] = self._trained_by(step)
            if step.kind == DELIVER:
                self._bundles[step.id] = self._bundles[step.needs[0]]
                self._done(step, {})
            else:
                self._event(step.site, step.id, EventKind.STEP, {"state": StepState.RUNNING})
                self._done(step, self._compute(step).report)
        for site in sites:
            self._event(site, None, EventKind.RUN, {"state": RunState.DONE})

    def bundle(self, step: StepId) -> Path:
        return self._bundles[step][0]

    def evaluate(self, bundle: Path, site: SiteName) -> Mapping[str, Any]:
        """Counts and metrics of a bundle of this recipe on a site's test data."""
        job = self._job(EVALUATE, site, 0, None)
        given = Input(bundle, file_sha256(bundle), operation=DELIVER)
        return self._execute(job, (given,), lambda *_: None).report

    def _compute(self, step: Step) -> Outcome:
        traits, output = self._plan.traits(step.id), None
        if traits.has_output:
            output = self._directory / file_stem(step.id) / "output.safetensors"
            try:
                output.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise cannot_write(output.parent, error) from error
        job = self._job(step.kind, step.site, step.visit, output)
        if output is not None and traits.keeps_state:
            job = replace(job, state=output.with_name("state.safetensors"))
        if traits.from_secret:
            job = replace(job, secret=secrets.token_hex(32))
        inputs = tuple(self._input(step, need) for need in step.needs)
        emit = partial(self._event, step.site, step.id)
        outcome = self._execute(job, (*inputs, *self._state_for(step)), emit)
        if output is not None:
            self._bundles[step.id] = output, outcome.sha256 or "", outcome.bytes
        if job.state is not None and outcome.state_sha256:
            self._states[step.id] = job.state, outcome.state_sha256
        return outcome

    def _input(self, step: Step, need: StepId) -> Input:
        path, sha256, _ = self._bundles[need]
        return Input(
            path,
            sha256,
            operation=operation_of(need),
            role=step.role_of(need),
            contributors=tuple(sorted(self._contributors[need])),
        )

    def _trained_by(self, step: Step) -> set[StepId]:
        """The steps that contributed to the output of a step."""
        before = (self._contributors[need] for need in step.needs)
        return set().union({step.id} if self._plan.traits(step.id).trains else (), *before)

    def _state_for(self, step: Step) -> tuple[Input, ...]:
        """The state that the last step of the site left whose work the inputs contain."""
        if not self._plan.traits(step.id).keeps_state:
            return ()
        before = [s for s in self._contributors[step.id] - {step.id} if s in self._states]
        visits = {known.id: known.visit for known in self._plan.steps if known.site == step.site}
        own = [known for known in before if known in visits]
        if not own:
            return ()
        last = max(own, key=visits.__getitem__)
        return (Input(*self._states[last], operation=operation_of(last), role=STATE),)

    def _job(self, kind: str, site: SiteName, visit: int, output: Path | None) -> Job:
        return Job(
            kind=kind,
            site=site,
            visit=visit,
            recipe=self._plan.recipe,
            data=self._data[site],
            device="cpu",
            output=output,
            features=self._plan.recipe.features,
            code=self._code,
            weights=self._weights,
            feature_cache=self._features,
        )

    @staticmethod
    def _execute(
        job: Job, inputs: tuple[Input, ...], emit: Callable[[EventKind, Mapping[str, Any]], None]
    ) -> Outcome:
        from fedelmy_node.training.loading import load  # imports torch
        from fedelmy_node.training.step import run

        return run(load(job), inputs, emit)

    def _receive(self, step: Step) -> None:
        """Emit the events of the hand-overs, as a network would."""
        for edge in self._edges_to.get(step.id, ()):
            _, sha256, size = self._bundles[edge.source]
            data = {"edge": edge.id, "bytes": size, "sha256": sha256, "carries": edge.carries}
            sent, received = {"peer": edge.receiver, "seconds": 0.0}, {"peer": edge.sender}
            self._event(edge.sender, edge.source, EventKind.SENT, data | sent)
            self._event(edge.receiver, edge.target, EventKind.RECEIVED, data | received)

    def _done(self, step: Step, report: Mapping[str, Any]) -> None:
        data: dict[str, Any] = {"state": StepState.DONE, "result": dict(report)}
        if step.id in self._bundles:
            _, data["sha256"], data["bytes"] = self._bundles[step.id]
        self._event(step.site, step.id, EventKind.STEP, data)

    def _event(
        self, site: SiteName, step: StepId | None, kind: EventKind, data: Mapping[str, Any]
    ) -> None:
        self._seq += 1
        self._emit(
            Event(
                seq=self._seq,
                time=time.time(),
                run=self._plan.run,
                site=site,
                step=step,
                kind=kind,
                data=data,
            )
        )
