"""Simulation: the same plan and the same training code in one process, for the same bytes without any network."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import SiteName, StepId, file_stem
from fedelmy_node.domain.plan import Edge, Plan, Step, StepKind, in_order
from fedelmy_node.durable import cannot_write, file_sha256
from fedelmy_node.errors import DataError
from fedelmy_node.training.data import parse_source
from fedelmy_node.training.job import JOBS, DataSpec, Input, Job, Outcome

__all__ = ["Simulation", "data_of"]


def data_of(federation: Federation) -> Mapping[SiteName, DataSpec]:
    """The data that stand for each site, as federation.toml names them under [[sites]]."""
    specs = {}
    for member in federation.members:
        if member.data is None:
            raise DataError(
                "E-DATA-SOURCE",
                f"simulation needs data for site {member.name}",
                hint=f'Give --data {member.name}=KIND[:PATH], or set data = "..." under its [[sites]].',
            )
        parse_source(member.data)
        indices = Path(member.indices) if member.indices else None
        specs[member.name] = DataSpec(source=member.data, indices=indices)
    return specs


class Simulation:
    """A plan executed step by step in this process; `tell` gets the events that nodes would have journaled."""

    def __init__(
        self,
        plan: Plan,
        data: Mapping[SiteName, DataSpec],
        directory: Path,
        tell: Callable[[Event], None],
        *,
        code: Collection[str] = (),
    ) -> None:
        """`code`: the names `module:function` that whoever simulates allows."""
        self._plan = plan
        self._data = data
        self._directory = directory
        self._tell = tell
        self._code = tuple(code)
        self._seq = 0
        self._bundles: dict[StepId, tuple[Path, str, int]] = {}
        self._edges_to: dict[StepId, list[Edge]] = {}
        for edge in plan.edges:
            self._edges_to.setdefault(edge.target, []).append(edge)

    def run(self) -> None:
        """Every step, inputs before outputs."""
        from fedelmy_node.training.data.kept import kept_sources  # the sites may all have one source

        with kept_sources():
            self._run()

    def _run(self) -> None:
        for site in dict.fromkeys(step.site for step in self._plan.steps):
            self._event(site, None, EventKind.RUN, {"state": RunState.RUNNING})
        for step in in_order(self._plan.steps):
            self._receive(step)
            if step.kind == StepKind.DELIVER:
                self._bundles[step.id] = self._bundles[step.needs[0]]
                self._done(step, {})
            else:
                self._event(step.site, step.id, EventKind.STEP, {"state": StepState.RUNNING})
                self._done(step, self._compute(step).report)
        for site in dict.fromkeys(step.site for step in self._plan.steps):
            self._event(site, None, EventKind.RUN, {"state": RunState.DONE})

    def bundle(self, step: StepId) -> Path:
        """Where a step's bundle is."""
        return self._bundles[step][0]

    def evaluate(self, bundle: Path, site: SiteName) -> Mapping[str, Any]:
        """Counts and metrics of any bundle of this recipe on a site's test data."""
        return self._work(
            self._job(StepKind.EVALUATE, site, 0, None), (Input(bundle, file_sha256(bundle)),), lambda *_: None
        ).report

    def _compute(self, step: Step) -> Outcome:
        output = None
        if step.kind != StepKind.EVALUATE:
            output = self._directory / file_stem(step.id) / "output.safetensors"
            try:
                output.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise cannot_write(output.parent, error) from error
        job = self._job(step.kind, step.site, step.visit, output)
        inputs = tuple(Input(*self._bundles[need][:2]) for need in step.needs)
        outcome = self._work(job, inputs, lambda kind, data: self._event(step.site, step.id, kind, data))
        if output is not None:
            self._bundles[step.id] = output, outcome.sha256 or "", outcome.bytes
        return outcome

    def _job(self, kind: StepKind, site: SiteName, visit: int, output: Path | None) -> Job:
        return Job(
            kind=JOBS[kind], site=site, visit=visit, recipe=self._plan.recipe,
            data=self._data[site], device="cpu", output=output, features=self._plan.recipe.features,
            code=self._code,
        )  # fmt: skip

    @staticmethod
    def _work(job: Job, inputs: tuple[Input, ...], emit: Callable[[EventKind, Mapping[str, Any]], None]) -> Outcome:
        from fedelmy_node.training.step import load, run  # torch: only simulation needs it here

        return run(load(job), inputs, emit)

    def _receive(self, step: Step) -> None:
        """Hand-overs cost nothing here, but are counted as on a network."""
        for edge in self._edges_to.get(step.id, ()):
            _, sha256, size = self._bundles[edge.source]
            data = {"edge": edge.id, "bytes": size, "sha256": sha256, "carries": edge.carries}
            self._event(edge.sender, edge.source, EventKind.SENT, data | {"peer": edge.receiver, "seconds": 0.0})
            self._event(edge.receiver, edge.target, EventKind.RECEIVED, data | {"peer": edge.sender})

    def _done(self, step: Step, report: Mapping[str, Any]) -> None:
        data: dict[str, Any] = {"state": StepState.DONE, "result": dict(report)}
        if step.id in self._bundles:
            _, data["sha256"], data["bytes"] = self._bundles[step.id]
        self._event(step.site, step.id, EventKind.STEP, data)

    def _event(self, site: SiteName, step: StepId | None, kind: EventKind, data: Mapping[str, Any]) -> None:
        self._seq += 1
        self._tell(
            Event(seq=self._seq, time=time.time(), run=self._plan.run, site=site, step=step, kind=kind, data=data)
        )
