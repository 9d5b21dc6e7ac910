"""A run that waits for this site's administrator: nothing begins before a person agrees, and every
way out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedelmy_launcher.plans.compiler import signed_cancel, signed_slices
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.consent.signed_commands import decode_cancel
from fedelmy_node.domain.artifact import Offer
from fedelmy_node.domain.errors import ConsentError, RunError
from fedelmy_node.domain.events import EdgeState, EventKind, RunState, StepState
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.reports import NeighbourState
from fedelmy_node.run import executor
from fedelmy_node.run.executor import Executor
from fedelmy_node.run.prepare import _stands
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.transfer.inbox import Inbox
from fedelmy_node.transfer.sender import _is_final
from tests.support.federations import make_plan, unsigned
from tests.support.journal_writes import set_run
from tests.unit.node.run.test_executor import RUN, SHA, Bench


class NoDevice:
    """Stands in for the device: it notes what would be loaded or computed."""

    active, waiting = None, ()

    def __init__(self, *_: object) -> None:
        self.warmed: list[str] = []
        self.submitted: list[str] = []

    def warm_up(self, assignment: object) -> None:
        self.warmed.append(assignment.step.id)  # type: ignore[attr-defined]

    def submit(self, assignment: object, inputs: object) -> None:
        self.submitted.append(assignment.step.id)  # type: ignore[attr-defined]

    def begin_next(self) -> None:
        return None

    def drop(self, *_: object) -> None:
        pass

    def close(self, grace_seconds: float) -> None:
        pass


@pytest.fixture
def pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    """Site `a`, the first of a chain, whose run is pending; its neighbours are prepared."""
    monkeypatch.setattr(executor, "Device", NoDevice)
    made: list[Bench] = []

    def make(**more: float) -> Bench:
        made.append(Bench(tmp_path, "wait", 5.0, RunState.PENDING, **more))
        for site in made[-1].network.sites.values():
            site.tell(NeighbourState(state=RunState.PREPARED))
        made[-1].executor.prepared(RUN)
        return made[-1]

    yield make
    for one in made:
        one.close()


def device(bench: Bench) -> NoDevice:
    return bench.executor._device  # type: ignore[return-value]


def test_nothing_begins_before_the_administrator_agrees(pending: Callable[..., Bench]) -> None:
    made = pending()
    with pytest.raises(ConsentError, match=r"E-CONSENT-APPROVAL.*administrator of a"):
        made.executor.start(RUN)
    made.network.sites["b"].heard.clear()
    made.network.sites["b"].tell(NeighbourState(state=RunState.RUNNING))
    assert made.network.sites["b"].heard.wait(20)
    made.executor.absent(RUN)  # what was heard is taken by now
    assert made.journal.state(RUN) == RunState.PENDING
    assert (device(made).warmed, device(made).submitted) == ([], [])


def test_approval_prepares_the_run_and_then_it_is_started(pending: Callable[..., Bench]) -> None:
    made = pending()
    assert made.executor.approve(RUN, made.sha256) == RunState.PREPARED
    assert device(made).warmed == ["train.1@a"]
    assert made.executor.approve(RUN, made.sha256) == RunState.PREPARED, (
        "saying it twice is harmless"
    )
    assert made.executor.start(RUN) == RunState.RUNNING
    assert device(made).submitted == ["train.1@a"]
    assert [event["state"] for event in made.happened(EventKind.RUN)] == [
        "pending",
        "prepared",
        "running",
    ]


def test_what_neighbours_said_meanwhile_counts_after_the_approval(
    pending: Callable[..., Bench],
) -> None:
    made = pending()
    made.network.sites["b"].heard.clear()
    made.network.sites["b"].tell(NeighbourState(state=RunState.RUNNING))
    assert made.network.sites["b"].heard.wait(20)
    assert made.executor.approve(RUN, made.sha256) == RunState.RUNNING


def test_only_the_plan_that_was_shown_is_approved(pending: Callable[..., Bench]) -> None:
    made = pending()
    with pytest.raises(RunError, match=r"E-RUN-CONFLICT.*has changed since it was shown"):
        made.executor.approve(RUN, "00" * 32)
    assert made.journal.state(RUN) == RunState.PENDING


def test_a_refusal_ends_the_run_with_its_reason(pending: Callable[..., Bench]) -> None:
    made = pending()
    assert made.executor.refuse(RUN, "the board has not met") == RunState.CANCELLED
    record = made.journal.run(RUN)
    assert (record.code, record.message) == (
        "E-CONSENT-REFUSED",
        "the administrator of a refused the run: the board has not met",
    )
    for attempt in (
        lambda: made.executor.start(RUN),
        lambda: made.executor.approve(RUN, made.sha256),
    ):
        with pytest.raises(ConsentError, match=r"E-CONSENT-REFUSED.*the board has not met"):
            attempt()
    hints = []
    for attempt in (lambda: made.executor.start(RUN), lambda: made.executor.refuse(RUN, "again")):
        with pytest.raises(ConsentError) as caught:
            attempt()
        hints.append(caught.value.hint)
    assert "Contact the site's administrator" in hints[0], "the operator's advice"
    assert "ask the operator for a new run" in hints[1], "the administrator's"
    with pytest.raises(ConsentError, match="E-CONSENT-REFUSED"):
        _stands(record, record.prepared.payload)
    assert not _stands(record, b"another plan"), "another plan of that name is looked at anew"


def test_what_is_prepared_can_still_be_refused_and_what_has_begun_cannot(
    pending: Callable[..., Bench],
) -> None:
    made = pending()
    made.executor.approve(RUN, made.sha256)
    made.executor.start(RUN)
    with pytest.raises(RunError, match=r"E-RUN-CONFLICT.*has begun"):
        made.executor.refuse(RUN, "")
    assert made.journal.state(RUN) == RunState.RUNNING


def test_preparing_the_same_plan_again_finds_it(pending: Callable[..., Bench]) -> None:
    record = pending().journal.run(RUN)
    assert _stands(record, record.prepared.payload)
    with pytest.raises(RunError, match="E-RUN-CONFLICT"):
        _stands(record, b"another plan")


@pytest.mark.parametrize("withdraw", [True, False])
def test_the_operator_can_take_it_back(pending: Callable[..., Bench], withdraw: bool) -> None:
    made = pending()
    word = signed_cancel(RUN, "", "another site refused", None, withdraw=withdraw)
    assert made.executor.cancel(decode_cancel(word.payload), word) == RunState.CANCELLED
    with pytest.raises(RunError, match="E-RUN-CANCELLED"):
        made.executor.approve(RUN, made.sha256)


def test_a_cancel_is_heard_from_a_neighbour(pending: Callable[..., Bench]) -> None:
    made = pending()
    word = signed_cancel(RUN, "", "enough", None)
    made.network.sites["b"].tell(NeighbourState(state=RunState.CANCELLED, cancel=word))
    made.wait_for(lambda: made.journal.state(RUN) == RunState.CANCELLED)


def test_it_expires_and_no_delivery_revives_it(pending: Callable[..., Bench]) -> None:
    made = pending(prepare_hours=0.0001)
    made.wait_for(lambda: made.journal.state(RUN) == RunState.EXPIRED)
    assert made.journal.run(RUN).code == "E-CONSENT-APPROVAL"
    made.executor.received(RUN)
    with pytest.raises(RunError, match=r"E-RUN-EXPIRED.*not approved in time"):
        made.executor.approve(RUN, made.sha256)
    assert made.journal.state(RUN) == RunState.EXPIRED


def test_a_restart_keeps_it(pending: Callable[..., Bench]) -> None:
    made = pending()
    made.executor.close()
    config = load_site_config(Given(state=made.executor._workspace._layout.root, data="digits"))
    before = made.executor
    again = Executor(config, before._workspace, made.journal, made.network, before._hooks)
    made.executor = again
    again.open()
    assert again.absent(RUN) == ()
    assert made.journal.state(RUN) == RunState.PENDING
    assert again.approve(RUN, made.sha256) == RunState.PREPARED


def test_it_is_not_pruned(pending: Callable[..., Bench]) -> None:
    with pytest.raises(RunError, match="E-RUN-UNFINISHED"):
        pending().executor.prune(RUN)


def test_a_bundle_is_not_taken_and_its_sender_tries_again(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.create()
    journal = Journal(":memory:", SiteName("b"))
    payload = signed_slices(make_plan("a", "b"), None)[SiteName("b")].payload
    prepared = unsigned(payload)
    inbox = Inbox(journal, layout, lambda run: pytest.fail("nothing was received"))
    (edge,) = (
        edge for edge in prepared.slice.edges_in if edge.sender == "a" and edge.carries == "train"
    )
    offer = Offer(
        run=RUN,
        edge=edge.id,
        size=100,
        sha256=SHA,
        block_bytes=1024,
        wire_dtype="float32",
        manifest=(),
    )
    for state, code in ((RunState.PENDING, ""), (RunState.EXPIRED, "E-CONSENT-APPROVAL")):
        if state == RunState.PENDING:
            journal.add_run(prepared, state)
        else:
            set_run(journal, RUN, state, code=code)
        with pytest.raises(ConsentError, match="E-CONSENT-APPROVAL") as caught:
            inbox.begin(SiteName("a"), offer)
        assert not _is_final(caught.value), "the sender keeps trying"
        assert journal.run(RUN).edges[edge.id].state == EdgeState.WAITING
    assert all(step.state == StepState.WAITING for step in journal.run(RUN).steps.values())
    assert not list(tmp_path.rglob("*.part"))
    journal.close()
