"""A run's history as its sites have it now: found by asking, read up to this moment, whoever does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from fedelmy_launcher.control import ASK_AGAIN, OTHER_RUNS, Refusal, Sites, refused
from fedelmy_launcher.discovery import discover, reported_run
from fedelmy_launcher.history import RunHistory
from fedelmy_launcher.listening import check_source
from fedelmy_node.domain.events import Event
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.reports import RunReport
from fedelmy_node.errors import FedelmyError, PeerError, RunError
from fedelmy_node.rpc.clients import OperatorClient

__all__ = ["gather_history"]

_STALL_SECONDS: Final = 30.0
"""A site that says nothing for so long, though it has more to tell, is not waited for."""
_MOST_EVENTS: Final = 2_000_000
_MOST_SECONDS: Final = 900.0
"""Of one site: what it has journaled already comes much faster; an end to what a site can make us listen to."""


def gather_history(sites: Sites, run: RunId) -> tuple[RunHistory, dict[SiteName, RunReport], list[Refusal]]:
    """The fold over what every site tells, its reports, and who did not answer; raises if nobody knows the run."""
    found, refusals = discover(sites, run)
    if not found:
        if any(refusal.error.code == "E-RUN-UNKNOWN" for refusal in refusals):
            raise RunError("E-RUN-UNKNOWN", f"no site that answers knows run {run}", hint=OTHER_RUNS)
        raise refused(refusals, ASK_AGAIN)
    history = RunHistory(reported_run(run, found))
    # Asked again over connections that stand: so the answers' clocks can be compared with ours.
    before = time.time()
    reports, lost = sites.reports(run, list(found))
    asked_at = (before + time.time()) / 2
    lock = threading.Lock()

    def fold(event: Event) -> None:
        with lock:
            history.add(event)

    _, broken = sites.ask(lambda site, client: _read(sites, client, reports[site], fold), list(reports))
    missing = [*refusals, *lost, *broken]
    history.extend(reported_run(run, reports, history.progress.steps))
    history.take(reports, {refusal.site: refusal.error for refusal in missing}, asked_at=asked_at)
    return history, reports, missing


def _read(sites: Sites, client: OperatorClient, report: RunReport, fold: Callable[[Event], None]) -> None:
    """A site's events up to its report: a run that goes on has no last one, nor has a site that makes them up."""
    if not report.last_event:
        return
    watchdog = _Watchdog(lambda: sites.drop(report.site))
    after, many, until = 0, 0, time.monotonic() + _MOST_SECONDS
    try:
        for event in client.watch(report.run, 0):
            watchdog.pat()
            check_source(event, report.site, report.run, after)
            after = event.seq
            fold(event)
            if after >= report.last_event:
                return
            many += 1
            if many >= _MOST_EVENTS or time.monotonic() > until:
                message = f"{report.site} does not come to an end; what it told after {many} events is missing"
                raise PeerError("E-PEER-PROTOCOL", message)
    except FedelmyError as error:
        if watchdog.bit:
            message = f"{report.site} told nothing for {_STALL_SECONDS:g} s; its later events are missing"
            raise PeerError("E-PEER-UNREACHABLE", message) from error
        raise
    finally:
        watchdog.stop()


class _Watchdog:
    """Calls `bite` once when it has not been patted for a while."""

    def __init__(self, bite: Callable[[], object]) -> None:
        self._bite = bite
        self._patted = time.monotonic()
        self.bit = False
        self._timer = self._wind(_STALL_SECONDS)

    def _wind(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self._look)
        timer.daemon = True
        timer.start()
        return timer

    def _look(self) -> None:
        left = self._patted + _STALL_SECONDS - time.monotonic()
        if left > 0:
            self._timer = self._wind(left)
        else:
            self.bit = True
            self._bite()

    def pat(self) -> None:
        self._patted = time.monotonic()

    def stop(self) -> None:
        self._timer.cancel()
