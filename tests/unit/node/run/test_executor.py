"""The executor with neighbours that cannot be reached: policies, patience, clocks that jump, words
of operators.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedelmy_launcher.plans.compiler import signed_cancel, signed_slices
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.consent.signed_commands import Cancel, decode_cancel
from fedelmy_node.domain.artifact import Parcel, Receipt
from fedelmy_node.domain.errors import IdentityError, PeerError, RunError
from fedelmy_node.domain.events import EdgeState, EventKind, RunState
from fedelmy_node.domain.names import RunId, SiteName, StepId, run_id
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.reports import NeighbourState, Signed
from fedelmy_node.peers.connections import TransferSlots
from fedelmy_node.run.executor import Executor, Hooks
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.state_directory import Layout
from tests.support.federations import make_plan, unsigned
from tests.support.journal_writes import finish_step

RUN = run_id("run-1")
SHA = "ab" * 32


class Neighbour:
    """A site at the other end: the seam to the network. It tells what it is given to tell."""

    def __init__(self) -> None:
        self.there = True
        self.told: NeighbourState | None = None
        self.got: list[str] = []
        self.changed = threading.Condition()
        self.heard = threading.Event()
        """Set when the word was taken and the next one is asked for."""

    def tell(self, state: NeighbourState | None, *, there: bool = True) -> None:
        with self.changed:
            self.told, self.there = state, there
            self.changed.notify_all()

    def watch(self, run: RunId, plan_id: str) -> Iterator[NeighbourState]:
        last: NeighbourState | None = None
        while True:
            with self.changed:
                self.changed.wait_for(lambda: not self.there or self.told is not last)  # noqa: B023
                if not self.there:
                    raise PeerError("E-PEER-UNREACHABLE", "gone")
                last = self.told
            assert last is not None
            yield last
            self.heard.set()

    def deliver(self, parcel: Parcel, moved: Callable[[int], None]) -> Receipt:
        if not self.there:
            raise PeerError("E-PEER-UNREACHABLE", "gone")
        self.got.append(parcel.offer.edge)
        return Receipt(edge=parcel.offer.edge, sha256=SHA, size=parcel.offer.size)

    def close(self) -> None:
        pass


class Network:
    """Stands in for Peers."""

    def __init__(self) -> None:
        self.sites = {name: Neighbour() for name in ("a", "b", "c", "d")}
        self.slots = TransferSlots(4)

    def connect(self, plan: Slice, site: SiteName) -> Neighbour:
        if not self.sites[site].there:
            raise PeerError("E-PEER-UNREACHABLE", "gone")
        return self.sites[site]


class Bench:
    """Site `a` of the chain a, b, c, d, which has trained; everything but the network is real."""

    def __init__(
        self,
        root: Path,
        policy: str,
        patience: float,
        state: RunState = RunState.PREPARED,
        prepare_hours: float = 24.0,
    ) -> None:
        self.network = Network()
        layout = Layout(root)
        layout.create()
        self.journal = Journal(layout.journal, SiteName("a"))
        plan = make_plan(
            "a", "b", "c", "d", absence={"on_unreachable": policy, "patience_seconds": patience}
        )
        payload = signed_slices(plan, None)[SiteName("a")].payload
        self.journal.add_run(unsigned(payload), state)
        self.sha256 = hashlib.sha256(payload).hexdigest()
        output = layout.output(RUN, StepId("train.1@a"))
        output.parent.mkdir(parents=True)
        output.write_bytes(b"x" * 10)
        if state == RunState.PREPARED:
            finish_step(self.journal, RUN, StepId("train.1@a"), SHA, 10, {})
        (root / "site.toml").write_text(f"[site]\nprepare_hours = {prepare_hours}\n")
        config = load_site_config(Given(state=root, data="digits"))
        self.faults: list[Exception] = []
        hooks = Hooks(
            verify_cancel=self.verify_cancel, run_ended=lambda run: None, faulted=self.faults.append
        )
        self.executor = Executor(
            config,
            Workspace(config, layout),
            self.journal,
            self.network,  # type: ignore[arg-type]
            hooks,
        )
        self.executor.open()

    def close(self) -> None:
        for site in self.network.sites.values():
            site.tell(None, there=False)
        self.executor.close()
        self.journal.close()
        assert not self.faults

    @staticmethod
    def verify_cancel(signed: Signed) -> Cancel:
        if signed.signature == b"forged":
            raise IdentityError("E-IDENTITY-SIGNATURE", "not an operator's")
        return decode_cancel(signed.payload)

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, [
                (event.kind, event.data) for event in self.journal.events(RUN)
            ]
            assert not self.faults
            time.sleep(0.01)

    def happened(self, kind: EventKind) -> list[dict[str, Any]]:
        return [dict(event.data) for event in self.journal.events(RUN) if event.kind == kind]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(policy: str, patience: float = 0.3, dead: tuple[str, ...] = ("b",)) -> Bench:
        made.append(Bench(tmp_path, policy, patience))
        for name, site in made[-1].network.sites.items():
            site.tell(NeighbourState(state=RunState.RUNNING), there=name not in dead)
        made[-1].executor.start(RUN)
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_skip_hands_over_to_the_next_one(bench: Callable[..., Bench]) -> None:
    made = bench("skip", 3.0)
    made.wait_for(lambda: made.network.sites["c"].got)
    assert made.network.sites["c"].got == ["train.1@a>train.3@c/train.2@b"]
    (around,) = made.happened(EventKind.AROUND)
    assert around["steps"] == ["train.2@b"] and around["code"] == "E-PEER-UNREACHABLE"
    assert made.network.sites["d"].got == []


def test_several_in_a_row(bench: Callable[..., Bench]) -> None:
    made = bench("skip", 3.0, dead=("b", "c"))  # d answers sooner, on any machine
    made.wait_for(lambda: made.network.sites["d"].got)
    assert made.network.sites["d"].got == ["train.1@a>train.4@d/train.3@c"]


def test_a_site_that_is_alone_ends_with_its_own_work(bench: Callable[..., Bench]) -> None:
    made = bench("skip", dead=("b", "c", "d"))
    made.wait_for(lambda: made.journal.run(RUN).steps[StepId("deliver.4@a")].sha256 == SHA)


def test_wait_waits_and_says_for_whom(bench: Callable[..., Bench]) -> None:
    made = bench("wait")
    made.wait_for(lambda: made.happened(EventKind.UNREACHABLE))
    made.wait_for(lambda: made.executor.absent(RUN)[0].seconds > 0.6)
    assert not made.happened(EventKind.AROUND)
    (absent,) = made.executor.absent(RUN)
    assert (absent.site, absent.on_unreachable) == ("b", "wait") and absent.seconds > 0.3
    made.network.sites["b"].tell(NeighbourState(state=RunState.RUNNING))
    made.wait_for(lambda: made.network.sites["b"].got == ["train.1@a>train.2@b"])
    made.wait_for(lambda: made.happened(EventKind.REACHABLE))


def test_abort_ends_the_run_for_good(bench: Callable[..., Bench]) -> None:
    made = bench("abort")
    made.wait_for(lambda: made.journal.state(RUN) == RunState.ABORTED)
    record = made.journal.run(RUN)
    assert record.code == "E-RUN-ABORTED" and record.message.startswith("b was unreachable")
    with pytest.raises(RunError, match="E-RUN-ABORTED"):
        made.executor.start(RUN)


def test_an_abort_is_heard_from_a_neighbour(bench: Callable[..., Bench]) -> None:
    made = bench("wait", dead=())
    made.network.sites["b"].tell(
        NeighbourState(state=RunState.ABORTED, message="d was out of reach")
    )
    made.wait_for(lambda: made.journal.state(RUN) == RunState.ABORTED)
    assert made.journal.run(RUN).message == "d was out of reach"


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_setting_the_clock_skips_nobody(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    made, real = bench("skip", patience=1.5), time.time
    made.wait_for(lambda: made.happened(EventKind.UNREACHABLE))
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    made.wait_for(lambda: made.executor.absent(RUN)[0].seconds > 0.6)
    assert not made.happened(EventKind.AROUND), "patience does not look at the wall clock"
    made.wait_for(lambda: made.happened(EventKind.AROUND))


def test_a_receiver_that_lost_what_it_acknowledged_is_given_it_again(
    bench: Callable[..., Bench],
) -> None:
    made = bench("wait", dead=())
    b = made.network.sites["b"]
    made.wait_for(lambda: len(b.got) == 1)
    made.wait_for(lambda: made.happened(EventKind.SENT))
    b.tell(NeighbourState(state=RunState.PREPARED))
    made.wait_for(lambda: len(b.got) == 2)
    edge = made.journal.run(RUN).slice.edges_out[0].id
    b.tell(NeighbourState(state=RunState.RUNNING, received=(edge,)))
    made.wait_for(lambda: made.journal.run(RUN).edges[edge].state == EdgeState.DONE)
    assert len(made.happened(EventKind.SENT)) == 1, "no news: it was sent before"


def test_who_came_back_from_an_old_backup_is_told_that_the_others_have_finished(
    bench: Callable[..., Bench],
) -> None:
    """Its input is there again, or still, but nobody brings the result a second time: waiting would
    be for ever.
    """
    made = bench("wait", dead=())
    b, edge = made.network.sites["b"], made.journal.run(RUN).slice.edges_out[0].id
    made.wait_for(lambda: len(b.got) == 1)
    b.tell(NeighbourState(state=RunState.RUNNING, received=(edge,), settled=(edge,)))
    made.wait_for(lambda: made.journal.run(RUN).edges[edge].state == EdgeState.SETTLED)
    assert made.journal.state(RUN) == RunState.RUNNING, "the result may be on its way"
    b.tell(NeighbourState(state=RunState.DONE, received=(edge,), settled=(edge,)))
    made.wait_for(lambda: made.journal.state(RUN) == RunState.FAILED)
    assert made.journal.run(RUN).code == "E-RUN-LOST"


def test_an_operators_cancel_travels_by_way_of_neighbours(bench: Callable[..., Bench]) -> None:
    made = bench("wait", dead=())
    word = signed_cancel(RUN, "", "enough", None)
    made.network.sites["b"].tell(NeighbourState(state=RunState.CANCELLED, cancel=word))
    made.wait_for(lambda: made.journal.state(RUN) == RunState.CANCELLED)
    assert made.journal.run(RUN).cancel == word, "kept for its own neighbours"


def test_a_forged_cancel_does_nothing(
    bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    made = bench("wait", dead=())
    word = Signed(payload=signed_cancel(RUN, "", "enough", None).payload, signature=b"forged")
    made.network.sites["b"].tell(NeighbourState(state=RunState.RUNNING, cancel=word))
    made.wait_for(lambda: "rejected a cancellation" in caplog.text)
    assert made.journal.state(RUN) == RunState.RUNNING


def test_a_cancel_of_an_older_plan_does_nothing(
    bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    made = bench("wait", dead=())
    word = signed_cancel(RUN, "0123456789abcdef" * 2, "long ago", None)
    made.network.sites["b"].tell(NeighbourState(state=RunState.RUNNING, cancel=word))
    made.wait_for(lambda: "it is for another run or plan" in caplog.text)
    assert made.journal.state(RUN) == RunState.RUNNING


def test_a_word_that_comes_before_the_start_counts_after_it(tmp_path: Path) -> None:
    """The site was down while the others began and ended without it."""
    made = Bench(tmp_path, "skip", 5.0)
    try:
        into = [edge.id for edge in made.journal.run(RUN).slice.edges_in]
        out = [edge.id for edge in made.journal.run(RUN).slice.edges_out]
        for site in made.network.sites.values():
            site.tell(NeighbourState(state=RunState.DONE, closed=(*into, *out)))
        made.executor.prepared(RUN)
        made.wait_for(lambda: made.journal.state(RUN) == RunState.DONE)
    finally:
        made.executor.close()
        made.journal.close()


def test_a_run_that_is_not_there_any_more_harms_nobody(bench: Callable[..., Bench]) -> None:
    made = bench("wait", dead=())
    made.executor.prepared(run_id("pruned"))
    made.executor.received(run_id("pruned"))
    made.executor.absent(RUN)


def test_a_run_under_way_is_not_pruned(bench: Callable[..., Bench]) -> None:
    made = bench("wait", dead=())
    with pytest.raises(RunError, match="E-RUN-UNFINISHED"):
        made.executor.prune(RUN)


def test_a_withdrawal_at_a_neighbour_begins_nothing(tmp_path: Path) -> None:
    made = Bench(tmp_path, "wait", 1.0)
    try:
        made.network.sites["b"].tell(NeighbourState(state=RunState.CANCELLED))
        made.executor.prepared(RUN)
        assert made.network.sites["b"].heard.wait(20)
        made.executor.absent(RUN)  # what was heard is taken by now
        assert made.journal.state(RUN) == RunState.PREPARED
    finally:
        for site in made.network.sites.values():
            site.tell(None, there=False)
        made.executor.close()
        made.journal.close()
