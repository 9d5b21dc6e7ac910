"""Collect a run's history from the sites that answer, up to the present."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from fedelmy_launcher.control.event_streams import check_source
from fedelmy_launcher.control.find_run import discover, reported_run
from fedelmy_launcher.control.sites import ASK_AGAIN, OTHER_RUNS, Refusal, Sites, refused
from fedelmy_launcher.view.history.fold import RunHistory
from fedelmy_node.domain.errors import FedelmyError, PeerError, RunError
from fedelmy_node.domain.events import Event
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.reports import RunReport
from fedelmy_node.rpc.clients import OperatorClient

_STALL_SECONDS: Final = 30.0
"""A site with unread events that sends none for so long is given up."""
_MOST_EVENTS: Final = 2_000_000
_MOST_SECONDS: Final = 900.0
"""Per site; journaled events arrive much faster."""


def gather_history(
    sites: Sites, run: RunId
) -> tuple[RunHistory, dict[SiteName, RunReport], list[Refusal]]:
    """Return history, reports and silent sites; raise if no site knows the run."""
    found, refusals = discover(sites, run)
    if not found:
        if any(refusal.error.code == "E-RUN-UNKNOWN" for refusal in refusals):
            message = f"run {run} not found at any site that answers"
            raise RunError("E-RUN-UNKNOWN", message, hint=OTHER_RUNS)
        raise refused(refusals, ASK_AGAIN)
    history = RunHistory(reported_run(run, found))
    # Ask again over open connections: connection set-up would distort the clock comparison.
    before = time.time()
    reports, lost = sites.reports(run, list(found))
    asked_at = (before + time.time()) / 2
    lock = threading.Lock()

    def fold(event: Event) -> None:
        with lock:
            history.add(event)

    _, broken = sites.ask(
        lambda site, client: _read(sites, client, reports[site], fold), list(reports)
    )
    missing = [*refusals, *lost, *broken]
    history.extend(reported_run(run, reports, history.progress.outline))
    history.take(reports, {refusal.site: refusal.error for refusal in missing}, asked_at=asked_at)
    return history, reports, missing


def _read(
    sites: Sites, client: OperatorClient, report: RunReport, fold: Callable[[Event], None]
) -> None:
    """Read a site's events up to its report: a running run, or a lying site, has no last one."""
    if not report.last_event:
        return
    watchdog = _Watchdog(lambda: sites.drop(report.site))
    after, many, until = 0, 0, time.monotonic() + _MOST_SECONDS
    try:
        for event in client.watch(report.run, 0):
            watchdog.reset()
            check_source(event, report.site, report.run, after)
            after = event.seq
            fold(event)
            if after >= report.last_event:
                return
            many += 1
            if many >= _MOST_EVENTS or time.monotonic() > until:
                message = (
                    f"{report.site} keeps sending events; those after the first {many} are missing"
                )
                raise PeerError("E-PEER-PROTOCOL", message)
    except FedelmyError as error:
        if watchdog.expired:
            message = (
                f"{report.site} stalled for {_STALL_SECONDS:g} s; its later events are missing"
            )
            raise PeerError("E-PEER-UNREACHABLE", message) from error
        raise
    finally:
        watchdog.stop()


class _Watchdog:
    """Call `on_stall` once if `reset` has not been called for `_STALL_SECONDS`."""

    def __init__(self, on_stall: Callable[[], object]) -> None:
        self._on_stall = on_stall
        self._reset_at = time.monotonic()
        self.expired = False
        self._timer = self._start(_STALL_SECONDS)

    def _start(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self._check)
        timer.daemon = True
        timer.start()
        return timer

    def _check(self) -> None:
        left = self._reset_at + _STALL_SECONDS - time.monotonic()
        if left > 0:
            self._timer = self._start(left)
        else:
            self.expired = True
            self._on_stall()

    def reset(self) -> None:
        self._reset_at = time.monotonic()

    def stop(self) -> None:
        self._timer.cancel()
