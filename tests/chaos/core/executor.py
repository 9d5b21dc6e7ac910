"""What a daemon does with events and decisions, as `Executor` and `Device` do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fedelmy_node.consent.signed_commands import decode_cancel
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.events import AHEAD, RunState, StepState
from fedelmy_node.run import actions as act
from fedelmy_node.run import run_events as ev
from fedelmy_node.store.records import RunRecord
from tests.chaos.core.checks import check_actions, check_under_way
from tests.chaos.core.entries import RUN, FaultError
from tests.chaos.core.inbox import MemoryInbox
from tests.chaos.core.site import Daemon, Sender, Site, Trainer, input_files

PREPARE_SECONDS: Final = 24 * 3600.0
_ASKED: Final = (ev.PlanApproved, ev.PlanRefused, ev.RunStarted, ev.RunCancelled)
"""What people ask for: only these may be answered with an error."""


class SimExecutor:
    """The executor of one daemon."""

    def __init__(
        self,
        site: Site,
        daemon: Daemon,
        now: Callable[[], ev.Now],
        crashes: Callable[[int], int | None],
    ) -> None:
        """`crashes` returns after how many of so many actions the site dies; None: it does not."""
        self._site, self._daemon = site, daemon
        self._now, self._crashes = now, crashes
        self.inbox = MemoryInbox(site, daemon, lambda site, event: site.apply(now(), event))

    @property
    def _is_alive(self) -> bool:
        return self._site.daemon is self._daemon

    def turn(self) -> None:
        """Handle the next event that was posted."""
        site, daemon = self._site, self._daemon
        daemon.is_late = daemon.is_due
        source, event = daemon.posted.popleft()
        if isinstance(event, ev.Restarted) and site.is_over:
            return
        unknown = site.record is None and not isinstance(event, ev.NeighbourCalled)
        if unknown or not daemon.is_current(source):
            return
        if isinstance(source, Trainer) and not isinstance(event, ev.StepProgressed):
            daemon.active = None
        if isinstance(source, Sender) and source.last is event:
            del daemon.senders[source.edge.id]
        if not (isinstance(event, ev.NeighbourSaid) and self._is_cancelled_by(event)):
            self._handle(event)

    def ring(self) -> None:
        """Handle the timers that are due, if they still are."""
        self._daemon.is_due = self._daemon.is_late = False
        if has_expired(self._site, self._now()):
            self._handle(ev.RunExpired())
        if is_due(self._site, self._now()) and self._is_alive:
            self._handle(ev.TimerFired())
            if is_due(self._site, self._now()) and self._is_alive:
                raise FaultError(f"{self._site.name} wakes again and again")

    def _is_cancelled_by(self, event: ev.NeighbourSaid) -> bool:
        """Apply a cancel that a neighbour passed on; return whether that was all."""
        site, told = self._site, event.state
        assert site.record is not None
        known = site.memory.neighbours.get(event.site)
        if told.cancel is None or (known is not None and known.state == told):
            return False
        cancel = decode_cancel(told.cancel.payload)
        if cancel.run != RUN or cancel.plan_id != site.record.slice.plan_id:
            return False
        self._handle(ev.RunCancelled(cancel, told.cancel, by=event.site))
        return not self._is_alive or site.state == RunState.CANCELLED

    def _handle(self, event: ev.RunEvent) -> None:
        """Decide, commit, act; then start the next step if the device is free."""
        site, daemon = self._site, self._daemon
        try:
            decision = site.apply(self._now(), event)
        except FedelmyError as error:
            if isinstance(event, _ASKED):
                return
            raise FaultError(f"{site.name}: {ev.describe(event)} raised {error}") from error
        if decision is None or not self._carry_out(decision):
            return
        if daemon.active is None and daemon.queue:
            trainer = daemon.queue.popleft()
            decision = site.apply(self._now(), ev.StepBegan(trainer.step.id))
            assert decision is not None
            if daemon.warm is not None and daemon.warm.step.id == trainer.step.id:
                daemon.warm.inputs = trainer.inputs
                trainer, daemon.warm = daemon.warm, None
            daemon.active = trainer
            self._carry_out(decision)
        if self._is_alive:
            check_under_way(site, daemon)

    def _carry_out(self, decision: act.Decision) -> bool:
        """Carry out the actions; return whether the daemon has survived."""
        check_actions(self._site, decision)
        last = self._crashes(len(decision.actions))
        for action in decision.actions[:last]:
            self._act(decision.record, action)
        return last is None

    def _act(self, record: RunRecord, action: act.Action) -> None:  # noqa: PLR0912 - one case each
        site, daemon = self._site, self._daemon
        match action:
            case act.QueueStep():
                if record.steps[action.step.id].state == StepState.QUEUED:
                    inputs = input_files(record, action.step)
                    daemon.queue.append(Trainer(action.step, inputs))
            case act.WarmUp():
                if all(trainer.step.id != action.step.id for trainer in daemon.trainers):
                    daemon.warm = Trainer(action.step)
            case act.DropSteps():
                steps = frozenset(action.steps)
                daemon.drop_steps(lambda trainer: trainer.step.id in steps)
            case act.StopWork():
                daemon.stop_work()
            case act.Send():
                kept = {edge.id for edge, _ in action.edges}
                daemon.senders = {e: known for e, known in daemon.senders.items() if e in kept}
                for edge, origin in action.edges:
                    if edge.id not in daemon.senders:
                        daemon.senders[edge.id] = site.sender(record, edge, origin)
            case act.RetrySends():
                for sender in daemon.senders.values():
                    if sender.edge.receiver == action.site:
                        sender.is_paused = False
            case act.Watch():
                daemon.watch(record, action.sites)
            case act.RetryWatch():
                if action.site in daemon.watches:
                    daemon.watches[action.site].is_paused = False
            case act.RemoveInput():
                site.disk.pop(f"in {action.edge.id}", None)
            case act.CleanUp():
                self.inbox.forget(record.slice.run)
                site.tidy()
            case act.WakeStreams():
                site.repeats += action.repeat
                site.version += 1
            case act.RemoveCheckpoints() | act.Warn():
                pass  # there are no checkpoints and no log
            case _:
                raise AssertionError(f"unknown action {action}")


def has_expired(site: Site, now: ev.Now) -> bool:
    record = site.record
    return (
        record is not None
        and record.state in AHEAD
        and record.changed_at + PREPARE_SECONDS <= now.wall
    )


def is_due(site: Site, now: ev.Now) -> bool:
    """Whether the run has to be woken."""
    wake_at = site.memory.wake_at
    return site.record is not None and wake_at is not None and wake_at <= now.monotonic
