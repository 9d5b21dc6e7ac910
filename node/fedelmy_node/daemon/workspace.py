"""Where the bundles of a run are on this site's disk, and what a trainer is told about a step."""

from __future__ import annotations

from pathlib import Path

from fedelmy_node.config.site import SiteConfig
from fedelmy_node.daemon.device import Assignment
from fedelmy_node.domain.events import StepState
from fedelmy_node.domain.names import RunId, StepId
from fedelmy_node.domain.plan import Slice, Step, StepKind
from fedelmy_node.store.layout import Layout
from fedelmy_node.store.records import RunRecord
from fedelmy_node.training.job import DataSpec, Job

__all__ = ["Workspace"]


class Workspace:
    """The files and jobs of every run of this site."""

    def __init__(self, config: SiteConfig, layout: Layout) -> None:
        self._config = config
        self._layout = layout

    @property
    def data(self) -> DataSpec:
        """The site's data as trainers are told of it."""
        return DataSpec(
            source=self._config.data or "", indices=self._config.indices, unreadable=self._config.unreadable
        )

    def bundle(self, plan: Slice, step: Step) -> Path:
        """The bundle that a step gives; a deliver step gives the one that it was given."""
        if step.kind == StepKind.DELIVER:
            return self._input(plan, step, step.needs[0])
        return self._layout.output(plan.run, step.id)

    def inputs(self, plan: Slice, step: Step) -> tuple[Path, ...]:
        return tuple(self._input(plan, step, need) for need in step.needs)

    def result(self, record: RunRecord) -> tuple[Step, Path] | None:
        """The deliver step of this site and its bundle, once it is done."""
        for step in record.slice.steps:
            if step.kind == StepKind.DELIVER and record.steps[step.id].state == StepState.DONE:
                return step, self.bundle(record.slice, step)
        return None

    def assignment(self, record: RunRecord, step: Step) -> Assignment:
        """A step as a trainer is given it."""
        plan, trains = record.slice, step.kind == StepKind.TRAIN
        directory = self._layout.step(plan.run, step.id)
        job = Job(
            kind="train" if trains else "evaluate",
            site=plan.site,
            visit=step.visit,
            recipe=plan.recipe,
            data=self.data,
            device=self._config.device,
            output=self._layout.output(plan.run, step.id) if trains else None,
            keep_pool=directory / "pool" if trains and self._config.keep_pool else None,
            checkpoints=directory / "checkpoints" if trains else None,
        )
        return Assignment(run=plan.run, step=step, job=job, directory=directory)

    def forget_checkpoints(self, run: RunId, step: StepId) -> None:
        """Remove what a step could have gone on from: it is journaled as done. Doing so again does nothing."""
        directory = self._layout.step(run, step) / "checkpoints"
        if directory.exists():
            import shutil  # over a megabyte that an idle daemon does not need

            shutil.rmtree(directory, ignore_errors=True)

    def _input(self, plan: Slice, step: Step, need: StepId) -> Path:
        edge = plan.edge_into(step, need)
        return self._layout.input(plan.run, edge.id) if edge else self.bundle(plan, plan.step(need))
