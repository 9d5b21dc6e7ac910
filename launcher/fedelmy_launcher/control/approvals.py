"""Wait for the administrators who have to approve a run before it starts.

The sites' events say when; nothing is polled. A launcher that stops can simply be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fedelmy_launcher.control.event_streams import Lost, Streams
from fedelmy_launcher.control.sites import Sites
from fedelmy_launcher.control.start_run import withdraw
from fedelmy_node.domain.errors import ConsentError, FedelmyError, RunError, error_from_code
from fedelmy_node.domain.events import AHEAD, Event, EventKind, RunState
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.reports import RunReport

Tell = Callable[[SiteName, str, str], None]
"""Called with a site, its state, and one line of news."""
_APPROVED: Final = frozenset(state for state in RunState if not state.is_over) - {
    RunState.PENDING,
    RunState.EXPIRED,
}


def ignore_news(site: SiteName, state: str, news: str) -> None:
    """A `Tell` that does nothing."""


def await_approvals(
    sites: Sites, run: RunId, reports: Mapping[SiteName, RunReport], tell: Tell
) -> None:
    """Return when no site is pending; if one refuses, withdraw the run elsewhere and raise."""
    pending = {site for site, report in reports.items() if report.state == RunState.PENDING}
    if not pending:
        return
    for site in sorted(pending):
        how = f"fedelmy-node runs approve {run}"
        tell(site, RunState.PENDING, f"waiting for the administrator of {site}: {how}")
    states: dict[SiteName, tuple[RunState, str, str]] = {}
    lost: set[SiteName] = set()
    with Streams(sites, run) as streams:
        # Sites that have approved are watched, too: the run may be cancelled or expire there.
        for site, report in reports.items():
            if report.state in AHEAD:
                streams.listen(site, report.last_event)
        while pending:
            news = streams.next()
            site = news.site
            if isinstance(news, Event):
                lost.discard(site)
                if news.kind == EventKind.RUN:
                    state, data = RunState(news.data["state"]), news.data
                    states[site] = state, data.get("code", ""), data.get("message", "")
                    if site in pending and state in _APPROVED:
                        pending.discard(site)
                        tell(site, state, f"{site} has approved")
            elif isinstance(news, Lost):
                if site not in lost:
                    text = f"{site} does not answer ({news.error.code}); still trying"
                    tell(site, "no answer", text)
                lost.add(site)
            elif news.error is not None:
                raise news.error
            else:
                if states.get(site, ("", ""))[1] == "E-CONSENT-REFUSED":
                    others = set(reports) - {site}
                    withdraw(sites, run, reports[site].plan_id, f"{site} refused", others)
                raise _ended(run, site, *states[site])


def _ended(run: RunId, site: SiteName, state: RunState, code: str, message: str) -> FedelmyError:
    """The error for a run that ended before it was started."""
    if code == "E-CONSENT-REFUSED":
        return ConsentError(code, message)
    if state == RunState.CANCELLED:
        reason = f": {message}" if message else ""
        return RunError("E-RUN-CANCELLED", f"run {run} was cancelled{reason}")
    if state == RunState.EXPIRED:
        return RunError("E-RUN-EXPIRED", f"run {run} has expired at {site}: {message}")
    text = f"run {run} has ended at {site}: {message or state}"
    return error_from_code(code or "E-RUN-FAILED", text)
