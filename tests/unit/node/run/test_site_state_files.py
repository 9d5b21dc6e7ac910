"""The state of a site on its disk: applied exactly once whatever dies when, backed up, removed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from fedelmy_launcher.plans.compiler import signed_slices
from fedelmy_launcher.simulate.simulation import Simulation
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.errors import FedelmyError, StoreError
from fedelmy_node.domain.events import EventKind, RunState, StepState
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.plan import Plan
from fedelmy_node.ops.backup import write_backup
from fedelmy_node.ops.restore import read_backup
from fedelmy_node.run.actions import CleanUp, QueueStep, RemoveCheckpoints
from fedelmy_node.run.decide import decide
from fedelmy_node.run.memory import Memory
from fedelmy_node.run.prepare import Preparation
from fedelmy_node.run.run_events import (
    Now,
    Restarted,
    RunEvent,
    RunStarted,
    StepFailed,
    StepFinished,
)
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.audit_log import Act, AuditLog
from fedelmy_node.store.durable_files import file_sha256
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.training.bundle_file import read_bundle
from fedelmy_node.training.job import PREPARE, DataSpec, Outcome
from fedelmy_node.training.loading import load
from fedelmy_node.training.step import run
from tests.support import methods
from tests.support.federations import make_plan, unsigned

A = SiteName("a")
VISITS = tuple(StepId(f"train.{number}@a") for number in (1, 2, 3))
LAST = VISITS[-1]


class KilledError(Exception):
    """The daemon is gone, and with it all that was not on disk."""


class Node:
    """One site with its real files and journal; a step is computed in this process."""

    def __init__(self, root: Path, plan: Plan) -> None:
        config, self.layout = load_site_config(Given(state=root, data="digits")), Layout(root)
        self.layout.create()
        self.plan, self.root = plan, root
        self.workspace = Workspace(config, self.layout)
        self.computed: list[StepId] = []
        self._open()

    def _open(self) -> None:
        self.journal = Journal(self.layout.journal, A)
        self.memory = Memory(plan_id=self.plan.plan_id)
        self.queue: list[StepId] = []

    def restart(self) -> None:
        self.journal.close()
        self._open()
        self.happens(Restarted())

    def prepare(self) -> None:
        payload = signed_slices(self.plan, None)[A].payload
        prepared = unsigned(payload)
        self.journal.add_run(prepared)
        AuditLog(self.root).record(Act(act="plan-accepted", run=self.plan.run))

    @property
    def record(self) -> RunRecord:
        return self.journal.run(self.plan.run)

    def happens(self, event: RunEvent, *, tidies: bool = True) -> None:
        now = Now(1000.0, time.time())

        def deciding(record: RunRecord) -> Any:
            decision = decide(record, self.memory, event, now)
            return decision.changes, decision

        decision = self.journal.update(self.plan.run, deciding)
        self.memory = decision.memory
        for action in decision.actions:
            if isinstance(action, QueueStep):
                self.queue.append(action.step.id)
            elif isinstance(action, RemoveCheckpoints):
                self.workspace.forget_checkpoints(self.plan.run, action.step)
            elif isinstance(action, CleanUp) and tidies:
                self.workspace.tidy(self.record)

    def compute(self, step: StepId) -> Outcome:
        self.computed.append(step)
        record = self.record
        known = record.slice.step(step)
        job = self.workspace.assignment(record, known).job
        self.layout.step(self.plan.run, step).mkdir(parents=True, exist_ok=True)
        return run(load(job), self.workspace.inputs(record, known), lambda *_: None)

    def work(self, kill: Callable[[str, StepId], None] = lambda when, step: None) -> None:
        """Do all that is queued; `kill` may raise before or after a commit."""
        while self.queue:
            step = self.queue.pop(0)
            try:
                made = self.compute(step)
            except FedelmyError as error:
                self.happens(StepFailed(step, error, False))
                continue
            kill("written", step)
            state = made.state_sha256, made.state_bytes
            self.happens(
                StepFinished(step, made.sha256 or "", made.bytes, made.report, *state), tidies=False
            )
            kill("committed", step)
        if self.record.state.is_over:
            kill("over", LAST)
            self.workspace.tidy(self.record)

    def state(self, step: StepId) -> Path:
        return self.layout.state(self.plan.run, step)

    @property
    def left(self) -> list[Path]:
        return list(self.root.rglob("state.safetensors"))

    @property
    def sha256(self) -> str:
        return self.record.steps[LAST].sha256

    @property
    def visits(self) -> list[int]:
        """What the visits reported, as often as they were journaled."""
        events = self.journal.events(self.plan.run)
        data = [event.data for event in events if event.kind == EventKind.STEP]
        return [each["result"]["visits"] for each in data if "visits" in each.get("result", {})]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Plan, str]]:
    """The plan of three visits of one site, and the digest that the last one has to give."""
    with pytest.MonkeyPatch.context() as patch:
        methods.install(patch)
        topology: Any = {"topology": "ring", "topology_settings": {"rounds": 3}}
        plan = make_plan("a", recipe=methods.recipe_of("remembers"), **topology)
        root = tmp_path_factory.mktemp("simulated")
        simulation = Simulation(plan, {A: DataSpec(source="digits")}, root, lambda event: None)
        simulation.run()
        yield plan, file_sha256(simulation.bundle(LAST))


@pytest.fixture
def node(tmp_path: Path, simulated: tuple[Plan, str]) -> Iterator[Node]:
    made = Node(tmp_path / "a", simulated[0])
    made.prepare()
    yield made
    made.journal.close()


def test_every_visit_continues_from_the_one_before(node: Node, simulated: tuple[Plan, str]) -> None:
    node.happens(RunStarted())
    node.work()
    assert (node.sha256, node.visits) == (simulated[1], [1, 2, 3])
    assert node.record.state == RunState.DONE


@pytest.mark.parametrize("step", VISITS)
@pytest.mark.parametrize(
    ("when", "lost"),
    [("written", "nothing"), ("written", "state"), ("written", "torn"), ("committed", "nothing")],
)
def test_a_kill_around_a_commit_applies_a_state_once(
    node: Node, simulated: tuple[Plan, str], when: str, step: StepId, lost: str
) -> None:
    """What was not committed is made again, also if only a part of it had come to the disk."""

    def kill(moment: str, at: StepId) -> None:
        if (moment, at) == (when, step):
            raise KilledError

    node.happens(RunStarted())
    with pytest.raises(KilledError):
        node.work(kill)
    if lost == "state":
        node.state(step).unlink()
    elif lost == "torn":
        node.state(step).write_bytes(node.state(step).read_bytes()[:100])
    before = node.visits
    node.restart()
    assert node.visits == before
    node.work()
    assert (node.sha256, node.visits) == (simulated[1], [1, 2, 3])
    assert node.computed.count(step) == (2 if when == "written" else 1)
    assert node.record.state == RunState.DONE and node.left == []


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_damaged_state_is_made_again(
    node: Node, simulated: tuple[Plan, str], damage: str
) -> None:
    def harm(moment: str, at: StepId) -> None:
        if (moment, at) == ("committed", VISITS[1]) and node.computed.count(at) == 1:
            data = bytearray(node.state(at).read_bytes())
            data[-1] ^= 1
            node.state(at).unlink()
            if damage == "flipped":
                node.state(at).write_bytes(data)

    node.happens(RunStarted())
    node.work(harm)
    assert node.sha256 == simulated[1] and node.record.state == RunState.DONE
    assert [node.computed.count(step) for step in VISITS] == [1, 2, 2]
    assert node.visits == [1, 2, 2, 3]


def _stop_after(step: StepId, moment: str = "committed") -> Callable[[str, StepId], None]:
    def kill(when: str, at: StepId) -> None:
        if (when, at) == (moment, step):
            raise KilledError

    return kill


def test_room_for_every_state_is_asked_for_in_advance(node: Node) -> None:
    """As large as those that the steps write."""
    job = node.workspace.assignment(node.record, node.record.slice.step(LAST)).job
    found = run(load(replace(job, kind=PREPARE)), (), lambda *_: None).report
    node.happens(RunStarted())
    with pytest.raises(KilledError):
        node.work(_stop_after(VISITS[0]))
    assert node.state(VISITS[0]).stat().st_size == found["state_bytes"]
    config = load_site_config(Given(state=node.root, data="digits"))
    preparation = Preparation(config, node.layout, A, node.workspace, node.journal, Mock())
    with_states, without = (
        preparation._need(node.record.slice, replace(node.record.prepared, report=report))
        for report in (found, {})
    )
    assert with_states - without == len(VISITS) * found["state_bytes"]


def test_a_backup_of_a_run_under_way_has_its_states(
    node: Node, simulated: tuple[Plan, str], tmp_path: Path
) -> None:
    node.happens(RunStarted())
    with pytest.raises(KilledError):
        node.work(_stop_after(VISITS[1]))
    contents = write_backup(node.root, tmp_path / "backup.tar")
    names = {node.state(step).relative_to(node.root).as_posix() for step in VISITS[:2]}
    assert names <= set(contents.files)
    read_backup(tmp_path / "backup.tar", tmp_path / "restored")
    restored = Node(tmp_path / "restored", node.plan)
    for step in VISITS[:2]:
        assert restored.state(step).read_bytes() == node.state(step).read_bytes()
    restored.happens(Restarted())
    restored.work()
    assert (restored.sha256, restored.visits) == (simulated[1], [1, 2, 3])
    assert VISITS[0] not in restored.computed and restored.left == []
    restored.journal.close()


def test_a_backup_without_a_state_that_the_journal_names_is_refused(
    node: Node, tmp_path: Path
) -> None:
    node.happens(RunStarted())
    with pytest.raises(KilledError):
        node.work(_stop_after(VISITS[0]))
    node.state(VISITS[0]).unlink()
    with pytest.raises(StoreError, match="E-STORE-DAMAGED"):
        write_backup(node.root, tmp_path / "backup.tar")
    assert not (tmp_path / "backup.tar").exists()


def test_a_run_that_is_over_or_pruned_leaves_no_state(node: Node) -> None:
    node.happens(RunStarted())
    with pytest.raises(KilledError):
        node.work(_stop_after(LAST, "over"))
    assert node.record.state == RunState.DONE and len(node.left) == 3
    node.restart()
    assert node.workspace.is_untidy(node.record), "killed before its files were removed"
    node.workspace.tidy(node.record)
    assert node.left == [] and not node.workspace.is_untidy(node.record)
    assert node.record.steps[LAST].state == StepState.DONE
    found = node.workspace.result(node.record)
    assert found is not None and set(read_bundle(found[1])) == {"model"}
    node.workspace.remove(node.plan.run)
    assert not node.layout.run(node.plan.run).exists()


def test_a_state_has_what_was_declared_and_its_digest_is_journaled(node: Node) -> None:
    node.happens(RunStarted())
    with pytest.raises(KilledError):
        node.work(_stop_after(VISITS[1]))
    for number, step in enumerate(VISITS[:2], start=1):
        known, path = node.record.steps[step], node.state(step)
        assert (known.state_sha256, known.state_size) == (file_sha256(path), path.stat().st_size)
        assert read_bundle(path)["visits"]["n"].tolist() == [number]
