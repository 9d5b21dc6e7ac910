"""Follow one run for the dashboard: fold the events of its sites."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fedelmy_launcher.control.event_streams import Lost, News, Streams
from fedelmy_launcher.control.find_run import discover, reported_run
from fedelmy_launcher.control.sites import Refusal, Sites
from fedelmy_launcher.view.history.fold import RunHistory
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.event_text import narrate
from fedelmy_node.domain.events import TROUBLE, Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.reports import RunReport
from fedelmy_node.domain.text import clean

logger = logging.getLogger(__name__)
_LOG_LINES: Final = 1000
_POLL_SECONDS: Final = 0.5
"""How often the threads check whether they are still wanted."""
_FIND_SECONDS: Final = 3.0
"""Between two attempts to find a run that no site reports."""
_STABLE_SECONDS: Final = 4.0
"""A stream that did not break for this long is stable: attempts come every two seconds."""
_FAILURES: Final = (RunState.FAILED, RunState.ABORTED, RunState.CANCELLED, RunState.EXPIRED)
_BAD: Final = (*_FAILURES, StepState.SKIPPED)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the event log; `number` increases."""

    number: int
    time: float
    site: SiteName
    level: str
    """info, warning or bad."""
    text: str

    def encoded(self) -> dict[str, Any]:
        fields = {key: getattr(self, key) for key in ("time", "site", "level", "text")}
        return {"n": self.number, **fields}


class Follower:
    """Follows a run in its own thread; read its state under `lock`. `version` counts changes."""

    def __init__(self, sites: Sites, run: RunId, changed: Callable[[], None]) -> None:
        """`sites` are closed with the follower. Do not wait for `changed` while holding `lock`."""
        self.run = run
        self.sites = sites
        self.lock: Final = threading.RLock()
        self.version = 0
        self.history: RunHistory | None = None
        """None until a site has reported the run."""
        self.reports: dict[SiteName, RunReport] = {}
        self.silent: dict[SiteName, FedelmyError] = {}
        self.log: Final[deque[LogLine]] = deque(maxlen=_LOG_LINES)
        self._numbers = itertools.count(1)
        self._changed = changed
        self._stopped = threading.Event()
        self._unmet: set[SiteName] = set()
        self._after: dict[SiteName, int] = {}
        """The last event number of each site."""
        self._ended: set[SiteName] = set()
        self._lost_at: dict[SiteName, float] = {}
        self._alive: Mapping[SiteName, RunState] = {}
        self._thread = threading.Thread(target=self._run, name=f"follow {run}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Release the watcher's slot at every site. Calling it twice is fine."""
        self._stopped.set()
        self._thread.join(_FIND_SECONDS)
        self.sites.close()

    @property
    def has_caught_up(self) -> bool:
        """Whether all events from before the start are folded."""
        with self.lock:
            return all(
                self._after.get(site, 0) >= report.last_event
                or site in self.silent
                or site in self._ended
                for site, report in self.reports.items()
            )

    def hear(self, states: Mapping[SiteName, RunState]) -> None:
        """Take the states from the list of runs: a failed run may have been resumed."""
        self._alive = states

    def _run(self) -> None:
        try:
            while not self._find():
                if self._stopped.wait(_FIND_SECONDS):
                    return
            self._follow()
        except FedelmyError as error:
            self._note(SiteName(""), "bad", f"{error}")
        except Exception as error:  # the thread's boundary
            if not self._stopped.is_set():
                logger.exception("internal error while following %s", self.run)
                text = f"internal error in the dashboard: {type(error).__name__}"
                self._note(SiteName(""), "bad", text)

    def _find(self) -> bool:
        reports, refusals = discover(self.sites, self.run)
        with self.lock:
            self.silent = {refusal.site: refusal.error for refusal in refusals}
            if reports:
                self.history = RunHistory(reported_run(self.run, reports))
                self._take_reports(reports, refusals)
        self._notify()
        return bool(reports)

    def _follow(self) -> None:
        assert self.history is not None
        with Streams(self.sites, self.run) as streams:
            for site in self.history.progress.sites:
                streams.listen(site)
            while not self._stopped.is_set():
                news = streams.next(_POLL_SECONDS)
                if news is not None:
                    for site in self._take(news):
                        streams.listen(site)
                for site in [site for site in self._ended if self._is_resumed(site)]:
                    self._ended.discard(site)
                    streams.listen(site, self._after.get(site, 0))
                for site in [site for site in self.silent if self._is_reachable(site)]:
                    self._mark_reachable(site)

    def _is_reachable(self, site: SiteName) -> bool:
        """Whether a silent site answers again without having sent an event."""
        return (
            site in self._alive
            and time.monotonic() - self._lost_at.get(site, 0.0) > _STABLE_SECONDS
        )

    def _mark_reachable(self, site: SiteName) -> None:
        self._ask(site)
        with self.lock:
            if self.silent.pop(site, None):
                self._note(site, "info", "answers again")
        self._notify()

    def _is_resumed(self, site: SiteName) -> bool:
        """Whether a run that had ended at a site was resumed; asks it, as the list may be old."""
        state = self._alive.get(site)
        if state is None or state.is_final:
            return False
        self._forget(site)
        reports = self._ask(site)
        return site in reports and not reports[site].state.is_final

    def _forget(self, site: SiteName) -> None:
        self._alive = {other: state for other, state in self._alive.items() if other != site}

    def _take(self, news: News) -> list[SiteName]:
        """Fold it; return the sites that it revealed."""
        assert self.history is not None
        found: list[SiteName] = []
        if isinstance(news, Event):
            returns = self.silent.pop(news.site, None) is not None
            if news.site in self._unmet:
                found = self._meet(news.site)
            elif returns or news.kind == EventKind.AROUND:
                self._ask(news.site)
            with self.lock:
                if returns:
                    self._note(news.site, "info", "answers again")
                self._fold(self.history, news)
        elif isinstance(news, Lost):
            with self.lock:
                if news.site not in self.silent:
                    text = f"does not answer ({news.error.code}); retrying"
                    self._note(news.site, "warning", text)
                self.silent[news.site] = news.error
                self._lost_at[news.site] = time.monotonic()
                self._forget(news.site)
                self.history.take({}, {news.site: news.error})
        else:
            self._ended.add(news.site)
            self._forget(news.site)
            if news.error is None:
                self.silent.pop(news.site, None)
                self._ask(news.site)
            else:
                with self.lock:
                    self.silent[news.site] = news.error
                    self.history.take({}, {news.site: news.error})
        self._notify()
        return found

    def _fold(self, history: RunHistory, event: Event) -> None:
        self._after[event.site] = event.seq
        history.add(event)
        text = narrate(event)
        if text is not None:
            bad = event.kind in (EventKind.RUN, EventKind.STEP) and event.data["state"] in _BAD
            level = "bad" if bad else "warning" if event.kind in TROUBLE else "info"
            self._log(event.time, event.site, level, text)

    def _meet(self, site: SiteName) -> list[SiteName]:
        """Ask a site that was unreachable at first: it may know more of the run."""
        assert self.history is not None
        self._unmet.discard(site)
        reports, refusals = discover(self.sites, self.run)
        with self.lock:
            known = self.history.progress.outline
            found = self.history.extend(reported_run(self.run, reports, known))
            self._take_reports(reports, refusals)
        return found

    def _ask(self, site: SiteName) -> Mapping[SiteName, RunReport]:
        """Update the site's report, which alone has the contributors and the closed edges."""
        reports, _ = self.sites.reports(self.run, [site])
        with self.lock:
            self._take_reports(reports, [])
        return reports

    def _take_reports(self, reports: Mapping[SiteName, RunReport], refusals: list[Refusal]) -> None:
        assert self.history is not None
        self.reports |= reports
        self._unmet |= {refusal.site for refusal in refusals if refusal.site not in self.reports}
        self.history.take(reports, {refusal.site: refusal.error for refusal in refusals})

    def _note(self, site: SiteName, level: str, text: str) -> None:
        """Log a message of the dashboard itself."""
        with self.lock:
            self._log(time.time(), site, level, text)
        self._notify()

    def _log(self, at: float, site: SiteName, level: str, text: str) -> None:
        self.log.append(LogLine(next(self._numbers), at, site, level, clean(text, 600)))

    def _notify(self) -> None:
        with self.lock:
            self.version += 1
        self._changed()
