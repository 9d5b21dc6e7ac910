"""The graph executor: on one thread, it decides what this site does next.

It knows steps, needs and the ways to meet them, and nothing of chains. Whatever happens (a start, a
delivery, a word from a trainer, a courier or a neighbour) is posted to its loop; it commits the
change to the journal, then acts. What to do follows from the journal alone, so a restart continues
where the journal ends. docs/states.md lists every state and every way out of it.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Final

from fedelmy_node.config.site_file import SiteConfig
from fedelmy_node.consent import approval
from fedelmy_node.consent.signed_commands import Cancel, decode_cancel
from fedelmy_node.domain.errors import FedelmyError, RunError
from fedelmy_node.domain.events import AHEAD, EdgeState, RunState, StepState
from fedelmy_node.domain.names import EdgeId, RunId, SiteName
from fedelmy_node.domain.plan_steps import Edge, Shortcut
from fedelmy_node.domain.reports import Absent, NeighbourState, Signed
from fedelmy_node.domain.text import clean
from fedelmy_node.peers.connections import Peers
from fedelmy_node.peers.watch import Lookout
from fedelmy_node.run.event_loop import Home, Loop
from fedelmy_node.run.neighbour_state import beyond_recall, repeat_lost, take_words
from fedelmy_node.run.run_graph import dead_ends, is_complete, to_send, useless, ways_around
from fedelmy_node.run.step_runner import Steps
from fedelmy_node.run.unreachable import Absences
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.audit_log import Act, Record, silent
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import RunRecord
from fedelmy_node.transfer.outbox import Outbox

logger = logging.getLogger(__name__)

_GRACE_SECONDS: Final = 10.0
"""Beyond what trainers are given to write a checkpoint and end."""
_ANOTHER_PLAN: Final = (
    "Cancel it with `fedelmy-launch cancel`, which asks the sites for the plan first."
)
_BEGUN: Final = (RunState.RUNNING, RunState.DONE, RunState.FAILED)
_LONGEST_SLEEP_SECONDS: Final = 3600.0
"""However far away the next deadline is: clocks are set, and systems limit how long one may wait."""


class Executor:
    """Runs the steps of every run of this site. Public methods may be called from any thread."""

    def __init__(
        self,
        config: SiteConfig,
        workspace: Workspace,
        journal: Journal,
        peers: Peers,
        home: Home,
        record: Record = silent,
    ) -> None:
        self._prepare_seconds = config.prepare_hours * 3600
        self._keep_runs = config.keep_runs
        self._workspace = workspace
        self._journal = journal
        self._home = home
        self._record = record
        self._loop = Loop(self._seconds_to_alarm, self._ring, home.faulted)
        self._steps = Steps(journal, workspace, self._loop.post, self._advance, self._fail_run)
        self._outbox = Outbox(journal, peers, self._loop.post, self._advance, self._refused, record)
        self._lookout = Lookout(peers, self._loop.post, self._heard, self._presence_changed)
        self._absences = Absences(journal, self._lookout)

    # --- from any thread
    # ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Take up every run where the journal ends."""
        self._loop.post(self._recover)
        self._loop.open()

    def close(self) -> None:
        """Stop deciding, let the trainers write checkpoints and end, and return when all is quiet."""
        self._loop.close()
        self._lookout.close()
        self._outbox.close()
        self._steps.device.close(_GRACE_SECONDS)

    @property
    def is_alive(self) -> bool:
        return self._loop.is_alive

    def activity(self) -> tuple[str, tuple[str, ...]]:
        """The active step and the queue, for people."""
        return self._loop.ask(self._steps.device.activity)

    def trainers(self) -> dict[str, int]:
        """Trainer processes, by what they do; a look in passing."""
        return self._steps.device.trainers()

    def absent(self, run: RunId) -> tuple[Absent, ...]:
        """The neighbours that a run waits for and that cannot be reached."""
        return self._loop.ask(lambda: self._absences.report(self._journal.run(run)))

    def near(self, run: RunId) -> frozenset[EdgeId]:
        """The edges of a run whose hand-over comes within seconds."""
        return self._steps.near(run)

    def prepared(self, run: RunId) -> None:
        """A plan was accepted: its start is near, so what needs no input loads already."""
        self._loop.post(partial(self._prepared, run))

    def approve(self, run: RunId, plan_sha256: str) -> RunState:
        """This site's administrator agrees to the plan of this digest."""
        return self._loop.ask(partial(self._approve, run, plan_sha256))

    def refuse(self, run: RunId, reason: str) -> RunState:
        """This site's administrator does not agree; only what has not begun can be refused."""
        return self._loop.ask(partial(self._refuse, run, reason))

    def start(self, run: RunId) -> RunState:
        """Begin a prepared run, or try the failed steps of a run again; otherwise nothing changes."""
        return self._loop.ask(partial(self._start, run))

    def called(self, run: RunId, plan_id: str, site: SiteName, *, stands: bool) -> None:
        """A neighbour opened its stream to this site, about this plan, or it has ended."""
        self._loop.post(partial(self._lookout.called, run, plan_id, site, stands=stands))

    def arrived(self, site: SiteName) -> None:
        """A site that cannot be called waits here from now on."""
        self._loop.post(partial(self._lookout.hurry, site))
        self._loop.post(partial(self._outbox.hurry, None, site))

    def received(self, run: RunId) -> None:
        """A bundle was journaled: perhaps a step can begin."""
        self._loop.post(partial(self._received, run))

    def cancel(self, cancel: Cancel, signed: Signed) -> RunState:
        """End a run here, and keep the operator's word for the neighbours."""
        return self._loop.ask(partial(self._cancel, cancel, signed))

    def prune(self, run: RunId) -> None:
        """Forget a run that is over, and its files."""
        self._loop.ask(partial(self._prune, run))

    # --- what happens to a run
    # ----------------------------------------------------------------------------

    def _recover(self) -> None:
        """What was under way when the last daemon ended begins again; what was done stays done."""
        for summary in self._journal.runs():
            if summary.state.is_over:
                if self._workspace.is_untidy(
                    summary.run
                ):  # the last daemon died before it was tidied
                    self._workspace.tidy(self._journal.run(summary.run))
                continue
            record = self._journal.run(summary.run)
            if record.cancel is not None:
                self._cancel(
                    decode_cancel(record.cancel.payload), record.cancel
                )  # verified by the journal
                continue
            # Received, but not begun: the last daemon died between its receipt and its first step.
            received = record.has_received and not record.is_unapproved
            if record.state == RunState.RUNNING or (record.state != RunState.FAILED and received):
                logger.info("goes on after a restart", extra={"run": summary.run})
                self._go_on(record)
            elif record.state != RunState.EXPIRED:
                self._absences.watch(record)

    def _go_on(self, record: RunRecord) -> None:
        """The run has begun, here or elsewhere: nothing of it is under way in this process yet, and
        all may be.
        """
        plan = record.slice
        for step, known in record.steps.items():
            if known.state in (StepState.RUNNING, StepState.QUEUED, StepState.FAILED):
                self._journal.set_step(plan.run, step, StepState.WAITING)
        if record.state != RunState.RUNNING:
            self._journal.set_run(plan.run, RunState.RUNNING)
        self._advance(plan.run)

    def _prepared(self, run: RunId) -> None:
        record = self._journal.find_run(run)
        if record is not None and record.state in AHEAD:
            self._absences.watch(record)
            for step in record.slice.steps if record.state == RunState.PREPARED else ():
                if not step.needs:
                    self._steps.warm_up(record, step)

    def _approve(self, run: RunId, plan_sha256: str) -> RunState:
        record = self._journal.run(run)
        approval.check_approval(record, plan_sha256)
        if record.state == RunState.PENDING:
            self._journal.set_run(run, RunState.PREPARED)
            self._prepared(run)
            for site, told in self._lookout.words(run).items():
                self._heard(run, site, told)  # what neighbours said meanwhile counts from now on
        return self._journal.state(run)

    def _refuse(self, run: RunId, reason: str) -> RunState:
        record = self._journal.run(run)
        approval.check_refusal(record)
        self._end(
            record,
            RunState.CANCELLED,
            code="E-CONSENT-REFUSED",
            message=approval.refusal_text(record, reason),
        )
        return self._journal.state(run)

    def _start(self, run: RunId) -> RunState:
        record = self._journal.run(run)
        approval.check_start(record)
        if record.state == RunState.FAILED:
            self._lookout.drop(
                run
            )  # a person has seen to it: patience begins anew, and nobody is waited for in vain
        if record.state in (RunState.PREPARED, RunState.FAILED):
            self._go_on(record)
        return self._journal.state(run)

    def _received(self, run: RunId) -> None:
        """A delivery proves that the run goes on, even one that this site has given up waiting for."""
        record = self._journal.find_run(run)
        if record is None or record.is_unapproved:
            return  # pruned meanwhile, or not to be received at all
        if record.state in (RunState.PREPARED, RunState.EXPIRED):
            self._go_on(record)
        else:
            self._advance(run)

    def _heard(self, run: RunId, site: SiteName, told: NeighbourState) -> None:
        """A neighbour tells how the run is doing there."""
        if told.cancel is not None and self._passed_on(run, site, told.cancel):
            return
        record = self._journal.run(run)
        if told.state == RunState.ABORTED:
            self._abort(run, told.message)
        elif record.state == RunState.PREPARED and told.state in _BEGUN:
            self._go_on(record)
        elif record.state == RunState.RUNNING:
            if told.state == RunState.PREPARED:
                self._outbox.hurry(run, site)  # perhaps its administrator has just agreed
            repeat_lost(self._journal, record, site, told)
            self._steps.expect(record, site, told.near)
            self._advance(run)

    def _passed_on(self, run: RunId, site: SiteName, signed: Signed) -> bool:
        """An operator's cancel by way of a neighbour; whether it ended the run."""
        try:
            cancel = self._home.verified_cancel(signed)
        except FedelmyError as error:
            logger.warning(
                "a cancel that %s passed on is not accepted: %s", site, error, extra={"run": run}
            )
            return False
        record = self._journal.run(run)
        if cancel.run != run or cancel.plan_id != record.slice.plan_id:
            logger.warning(
                "a cancel that %s passed on is for another run or plan", site, extra={"run": run}
            )
            return False
        if not record.state.is_over:
            facts = {"reason": cancel.reason, "operator": cancel.operator}
            self._record(
                Act(act="run-cancelled", who=f"site/{site}", run=run, facts=facts, must=False)
            )
        return self._cancel(cancel, signed) == RunState.CANCELLED

    def _cancel(self, cancel: Cancel, signed: Signed) -> RunState:
        run = cancel.run
        record = self._journal.run(run)
        if cancel.plan_id != record.slice.plan_id:  # an older word about a run of the same name
            raise RunError(
                "E-RUN-CONFLICT", f"the cancel is for another plan of run {run}", hint=_ANOTHER_PLAN
            )
        if cancel.withdraw and record.state not in AHEAD:
            return record.state
        if record.cancel is None and not cancel.withdraw:
            self._journal.keep_cancel(run, signed)
        if not record.state.is_over:
            self._end(record, RunState.CANCELLED, message=clean(cancel.reason, 500))
        return self._journal.state(run)

    def _abort(self, run: RunId, message: str) -> None:
        """The plan's word, not an operator's: a site stayed out of reach."""
        self._end(self._journal.run(run), RunState.ABORTED, code="E-RUN-ABORTED", message=message)

    def _end(
        self, record: RunRecord, state: RunState, *, code: str = "", message: str = ""
    ) -> None:
        """The run is over here, whatever was under way."""
        run = record.slice.run
        if record.state.is_over:
            return
        self._halt(run)
        self._lookout.drop(run)
        self._journal.end_run(run, state, code=code, message=message)
        self._tidy(run)
        self._steps.feed()

    def _fail_run(self, run: RunId, error: FedelmyError) -> None:
        """Nothing more can be done here without a person; the other sites keep what they have."""
        self._halt(run)
        self._journal.set_run(run, RunState.FAILED, code=error.code, message=error.message)
        self._steps.feed()

    def _refused(self, run: RunId, edge: Edge, error: FedelmyError) -> None:
        """A hand-over can never work, unless our own bundle is damaged and can be made or received
        again.
        """
        if error.code == "E-STORE-DAMAGED" and self._steps.repairs.of_output(
            run, edge.source, error
        ):
            self._advance(run)
        else:
            self._fail_run(run, error)

    def _halt(self, run: RunId) -> None:
        self._steps.drop(run)
        self._outbox.drop(run)
        self._absences.forget(run)

    def _tidy(self, run: RunId) -> None:
        """What a run that is over leaves on the disk is bounded: its result, and only of the newest
        runs.
        """
        self._home.run_ended(run)
        self._workspace.tidy(self._journal.run(run))
        over = [
            known.run
            for known in self._journal.runs()
            if known.state.is_over or known.state == RunState.EXPIRED
        ]
        for old in over[self._keep_runs :]:
            logger.info("is forgotten: %d newer runs are over", self._keep_runs, extra={"run": old})
            self._record(Act(act="run-forgotten", run=old, facts={"newer_runs": self._keep_runs}))
            self._prune(old)

    def _prune(self, run: RunId) -> None:
        approval.check_pruning(run, self._journal.run(run).state)
        self._halt(run)
        self._lookout.drop(run)
        self._home.run_ended(run)
        self._workspace.remove(
            run
        )  # first: a kill in between leaves a run that can be pruned again
        self._journal.remove_run(run)

    def _ring(self) -> None:
        """A deadline has passed: an expiry, somebody's patience, or a rest."""
        for known in self._journal.runs(*AHEAD):
            if known.changed_at + self._prepare_seconds <= time.time():
                self._halt(known.run)
                self._lookout.drop(known.run)
                code, message = approval.expiry_of(known.state)
                self._journal.set_run(known.run, RunState.EXPIRED, code=code, message=message)
        for run in self._absences.due() | self._steps.rested():
            self._advance(run)

    def _seconds_to_alarm(self) -> float | None:
        """By the wall clock for expiries, which outlive a restart; patience and rests do not depend
        on it.
        """
        expiries = [
            known.changed_at + self._prepare_seconds - time.time()
            for known in self._journal.runs(*AHEAD)
        ]
        due = expiries + self._steps.seconds_to_rested() + self._absences.seconds_to_due()
        return min(*due, _LONGEST_SLEEP_SECONDS) if due else None

    # --- the graph
    # ----------------------------------------------------------------------------------------

    def _advance(self, run: RunId) -> None:
        """Do whatever the journal allows: queue steps, hand outputs over, go around the dead, end
        the run.
        """
        record = self._journal.run(run)
        while record.state == RunState.RUNNING:
            take_words(self._journal, record, words := self._lookout.words(run))
            if lost := beyond_recall(record, words) or self._leave_out(self._journal.run(run)):
                self._fail_run(run, lost)
                return
            self._steps.queue(run)
            record = self._journal.run(run)
            for edge in to_send(record):
                self._outbox.send(
                    record, edge, self._workspace.bundle(record, record.slice.step(edge.source))
                )
            self._outbox.keep(run, {edge.id for edge in to_send(record)})
            self._steps.feed()
            if is_complete(record):
                self._halt(run)
                self._lookout.drop(run)
                unused = [edge.id for edge in record.slice.edges_out if record.is_superseded(edge)]
                self._journal.set_edges(run, unused, EdgeState.CLOSED)
                self._journal.set_run(run, RunState.DONE)
                self._tidy(run)
                return
            self._absences.watch(record)
            if not self._go_around(record):
                return
            record = self._journal.run(run)
        if not record.state.is_over:
            self._absences.watch(record)

    def _leave_out(self, record: RunRecord) -> FedelmyError | None:
        """Steps that the others went on without are not done any more; why the run cannot go on, if
        so.
        """
        run = record.slice.run
        while steps := useless(record, self._absences.given_up(record)):
            self._steps.stop(run, steps)
            into = [edge.id for edge in record.slice.edges_in if edge.target in steps]
            self._journal.leave_out(run, steps, into, "the others went on without it")
            record = self._journal.run(run)
        return self._steps.review(record, self._absences.given_up(record))

    def _go_around(self, record: RunRecord) -> bool:
        """Take the ways around sites that were given up, or abort, as the plan says; whether any
        way was taken.
        """
        run = record.slice.run
        fatal = self._absences.fatal(record)
        if fatal is not None:
            self._abort(run, fatal)
            return False
        taken, given_up = False, self._absences.given_up(record)
        for way in ways_around(record, given_up, self._absences.silent(record)):
            origin, reason = self._absences.reason(record, way.skips)
            if isinstance(way, Shortcut):
                rivals = [
                    rival.id
                    for rival in record.slice.ways_to(way.target, way.need)
                    if rival.id != way.id
                ]
                taken |= self._journal.meet_need(run, way, rivals, origin, reason)
            else:
                self._journal.skip(
                    run, way, EdgeState.MOVING, origin, {"peer": way.receiver, **reason}
                )
                taken = True
        for edge in dead_ends(record, given_up):
            origin, reason = self._absences.reason(record, (edge.target,))
            self._journal.skip(run, edge, EdgeState.GIVEN_UP, origin, reason)
            taken = True
        return taken

    def _presence_changed(self, run: RunId, site: SiteName) -> None:
        record = self._journal.run(run)
        if self._absences.note(record, site):
            self._outbox.hurry(run, site)
        self._advance(run)
