"""Waiting for people: sites whose administrators have to agree before a run is started.

Their events tell; nothing is asked again. A launcher that goes away meanwhile is simply run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedelmy_launcher.control import Sites, withdraw
from fedelmy_launcher.listening import Lost, Streams
from fedelmy_node.domain.events import AHEAD, Event, EventKind, RunState
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.reports import RunReport
from fedelmy_node.errors import ConsentError, FedelmyError, RunError, error_from_code

__all__ = ["Tell", "await_approvals", "nobody"]

Tell = Callable[[SiteName, str, str], None]
"""Told of a site, its state, and one line of news."""


def nobody(site: SiteName, state: str, news: str) -> None:
    """Nobody is told."""


def await_approvals(sites: Sites, run: RunId, reports: Mapping[SiteName, RunReport], tell: Tell) -> None:
    """Return when no site is pending any more; raise, and withdraw the run elsewhere, when one refuses."""
    pending = {site for site, report in reports.items() if report.state == RunState.PENDING}
    if not pending:
        return
    for site in sorted(pending):
        tell(site, RunState.PENDING, f"waits for the administrator of {site}: fedelmy-node runs approve {run}")
    states: dict[SiteName, tuple[RunState, str, str]] = {}
    lost: set[SiteName] = set()
    # Those that have agreed are heard, too: the run can be cancelled or expire there meanwhile.
    ahead = [site for site, report in reports.items() if report.state in AHEAD]
    with Streams(sites, run) as streams:
        for site in ahead:
            streams.listen(site, reports[site].last_event)
        while pending:
            news = streams.next()
            if isinstance(news, Event):
                if news.kind == EventKind.RUN:
                    state = RunState(news.data["state"])
                    states[news.site] = state, news.data.get("code", ""), news.data.get("message", "")
                    if news.site in pending and state not in (RunState.PENDING, RunState.EXPIRED) and not state.is_over:
                        pending.discard(news.site)
                        tell(news.site, state, f"{news.site} has approved")
                lost.discard(news.site)
            elif isinstance(news, Lost):
                if news.site not in lost:
                    tell(news.site, "no answer", f"{news.site} does not answer ({news.error.code}); still trying")
                lost.add(news.site)
            elif news.error is not None:
                raise news.error
            else:
                if states.get(news.site, ("", ""))[1] == "E-CONSENT-REFUSED":
                    plan_id = reports[news.site].plan_id
                    withdraw(sites, run, plan_id, f"{news.site} refused", set(reports) - {news.site})
                raise _ended(run, news.site, *states[news.site])


def _ended(run: RunId, site: SiteName, state: RunState, code: str, message: str) -> FedelmyError:
    """What became of a run that ended before it was started."""
    if code == "E-CONSENT-REFUSED":
        return ConsentError(code, message)
    if state == RunState.CANCELLED:
        return RunError("E-RUN-CANCELLED", f"run {run} was cancelled" + (f": {message}" if message else ""))
    if state == RunState.EXPIRED:
        return RunError("E-RUN-EXPIRED", f"run {run} has expired at {site}: {message}")
    return error_from_code(code or "E-RUN-FAILED", f"run {run} has ended at {site}: {message or state}")
