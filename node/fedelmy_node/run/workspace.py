"""The files of a run on this site's disk, and the jobs of its steps."""

from __future__ import annotations

import logging
from pathlib import Path

from fedelmy_node.config.site_file import SiteConfig
from fedelmy_node.consent.rules import smallest_class_allowed
from fedelmy_node.device.device_queue import Assignment
from fedelmy_node.domain.events import StepState
from fedelmy_node.domain.names import RunId, StepId
from fedelmy_node.domain.plan_steps import Edge, Step
from fedelmy_node.domain.step_traits import STATE, operation_of
from fedelmy_node.run.inputs import origin_of, provided_by, provided_needs, state_source
from fedelmy_node.store.durable_files import remove_tree
from fedelmy_node.store.records import RunRecord
from fedelmy_node.store.site_secret import step_secret
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.training.data import absolute_source
from fedelmy_node.training.job import CacheSpec, DataSpec, Input, Job

logger = logging.getLogger(__name__)


class Workspace:
    """The files and jobs of every run of this site."""

    def __init__(self, config: SiteConfig, layout: Layout) -> None:
        self._config = config
        self._layout = layout
        self._source = absolute_source(
            config.data or ""
        )  # trainers work in directories of their own

    @property
    def data(self) -> DataSpec:
        """The site's data as described to trainers."""
        config = self._config
        return DataSpec(
            source=self._source,
            indices=config.indices,
            unreadable=config.unreadable,
            spill=self._layout.samples,
            memory_bytes=config.trainer.data_bytes,
        )

    def bundle(self, record: RunRecord, step: Step) -> Path:
        """Return the output bundle of a step; that of a deliver step is its input."""
        if record.slice.traits(step.id).passes_on:
            (given,) = self.inputs(record, step)
            return given.path
        return self._layout.output(record.slice.run, step.id)

    def inputs(self, record: RunRecord, step: Step) -> tuple[Input, ...]:
        """Return the inputs of a step in the order of its needs, without needs met by nothing."""
        needs = provided_needs(record, step)
        given = tuple(self._input(record, step, need) for need in needs)
        state = state_source(record, step)
        if state is None:
            return given
        path = self._layout.state(record.slice.run, state)
        sha256 = record.steps[state].state_sha256
        return *given, Input(path, sha256, operation=operation_of(state), role=STATE)

    def received(self, run: RunId, edge: Edge) -> Path:
        """Return the bundle that was received on an edge."""
        return self._layout.input(run, edge.id)

    def result(self, record: RunRecord) -> tuple[Step, Path] | None:
        """Return this site's deliver step and its bundle; None until the step is done."""
        for step in record.slice.steps:
            if (
                record.slice.traits(step.id).passes_on
                and record.steps[step.id].state == StepState.DONE
            ):
                return step, self.bundle(record, step)
        return None

    def tidy(self, record: RunRecord) -> None:
        """Keep the result of a finished run (or what was trained, if there is none), its logs and
        a kept pool; remove its other files, among them all that was made of the site's secret.
        """
        plan, found = record.slice, self.result(record)
        outputs = {self._layout.output(plan.run, step.id) for step in plan.steps}
        kept = {found[1]} if found else outputs - self._masks(record)
        states = {self._layout.state(plan.run, step.id) for step in plan.steps}
        for path in {*self._layout.run(plan.run).glob("inputs/*"), *outputs, *states} - kept:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                message, extra = (
                    "cannot remove a file that is no longer needed: %s",
                    {"private": str(path)},
                )
                logger.warning(message, error.strerror, extra={"run": plan.run, **extra})
        for step in plan.steps:
            self.forget_checkpoints(plan.run, step.id)

    def is_untidy(self, record: RunRecord) -> bool:
        """Whether a finished run still has files that only a run in progress needs."""
        directory = self._layout.run(record.slice.run)
        left = ("inputs/*.part", "steps/*/checkpoints", "steps/*/state.safetensors")
        is_left = any(any(directory.glob(pattern)) for pattern in left)
        return is_left or any(path.exists() for path in self._masks(record))

    def _masks(self, record: RunRecord) -> set[Path]:
        """The outputs that are made of the site's secret."""
        plan = record.slice
        secret = (step.id for step in plan.steps if plan.traits(step.id).from_secret)
        return {self._layout.output(plan.run, step) for step in secret}

    def remove(self, run: RunId) -> None:
        """Remove all files of a run."""
        remove_tree(self._layout.run(run))

    def size(self, run: RunId) -> int:
        """Return the size of a run's files in bytes."""
        return sum(
            path.stat().st_size for path in self._layout.run(run).rglob("*") if path.is_file()
        )

    def assignment(self, record: RunRecord, step: Step) -> Assignment:
        """Return the job of a step."""
        plan, traits = record.slice, record.slice.traits(step.id)
        directory = self._layout.step(plan.run, step.id)
        job = Job(
            kind=step.kind,
            site=plan.site,
            visit=step.visit,
            recipe=plan.recipe,
            data=self.data,
            device=self._config.device,
            processes=self._config.trainer.processes,
            fast=self._config.trainer.fast,
            output=self._layout.output(plan.run, step.id) if traits.has_output else None,
            state=self._layout.state(plan.run, step.id) if traits.keeps_state else None,
            keep_pool=directory / "pool" if traits.trains and self._config.keep_pool else None,
            code=self._config.consent.code,
            weights=self._config.weights,
            feature_cache=self._feature_cache if traits.trains else None,
            max_change=self._config.consent.max_change,
            min_class_samples=smallest_class_allowed(plan, step, self._config.consent),
            checkpoints=self._layout.checkpoints(plan.run, step.id) if traits.has_output else None,
            secret=self._secret(record, step),
            features=plan.recipe.features if "features" in self._config.consent.disclose else 0,
        )
        return Assignment(run=plan.run, step=step, job=job, directory=directory)

    def _secret(self, record: RunRecord, step: Step) -> str:
        if not record.slice.traits(step.id).from_secret:
            return ""
        return step_secret(self._layout.secret, record, step.id)

    @property
    def _feature_cache(self) -> CacheSpec | None:
        limit = self._config.trainer.features_mb << 20
        return CacheSpec(directory=self._layout.features, limit_bytes=limit) if limit else None

    def forget_checkpoints(self, run: RunId, step: StepId) -> None:
        """Remove the checkpoints of a step that is journaled as done."""
        remove_tree(self._layout.checkpoints(run, step))

    def _input(self, record: RunRecord, step: Step, need: StepId) -> Input:
        source, route = provided_by(record, step.id, need), record.route_used(step.id, need)
        if source is not None:
            given = record.slice.step(source)
            return Input(
                self.bundle(record, given),
                record.steps[source].sha256,
                operation=operation_of(source),
                role=step.role_of(need),
                contributors=origin_of(record, given).contributors,
            )
        assert isinstance(route, Edge), "a need that was met by nothing gives no input"
        known = record.edges[route.id]
        return Input(
            self.received(record.slice.run, route),
            known.sha256,
            operation=operation_of(route.source),
            role=step.role_of(need),
            contributors=known.origin.contributors,
        )
