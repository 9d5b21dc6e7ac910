"""One run that somebody looks at: its sites' events, folded as they come, until nobody looks any more."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fedelmy_launcher.control import Refusal, Sites
from fedelmy_launcher.discovery import discover, reported_run
from fedelmy_launcher.history import RunHistory
from fedelmy_launcher.listening import Lost, News, Streams
from fedelmy_node.domain.events import TROUBLE, Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.narration import narrate
from fedelmy_node.domain.reports import RunReport
from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import FedelmyError

__all__ = ["Follower", "LogLine"]

logger = logging.getLogger(__name__)
_LOG_LINES: Final = 1000
"""That are kept; a page that was away for longer misses the oldest."""
_LOOK_SECONDS: Final = 0.5
"""Between two looks at whether anybody still wants to know."""
_FIND_SECONDS: Final = 3.0
"""Between two attempts to find a run that no site tells of."""
_STANDS_SECONDS: Final = 4.0
"""A stream that did not break for so long stands: attempts come every two seconds."""
_BAD: Final = (RunState.FAILED, RunState.ABORTED, RunState.CANCELLED, RunState.EXPIRED, StepState.SKIPPED)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One sentence of the log."""

    number: int
    """Increases; a page asks for what comes after the last one that it has."""
    time: float
    site: SiteName
    level: str
    """info, warning or bad."""
    text: str

    def encoded(self) -> dict[str, Any]:
        return {"n": self.number, "time": self.time, "site": self.site, "level": self.level, "text": self.text}


class Follower:
    """Follows a run in a thread of its own. What it knows is read under `lock`; `version` counts the changes."""

    def __init__(self, sites: Sites, run: RunId, changed: Callable[[], None]) -> None:
        """`sites` are for this follower alone and closed with it. Whoever waits for `changed` must not hold `lock`."""
        self.run = run
        self.sites = sites
        self.lock: Final = threading.RLock()
        self.version = 0
        self.history: RunHistory | None = None
        """None until a site has told of the run."""
        self.reports: dict[SiteName, RunReport] = {}
        self.silent: dict[SiteName, FedelmyError] = {}
        """Sites that do not answer, or not about this run."""
        self.log: Final[deque[LogLine]] = deque(maxlen=_LOG_LINES)
        self._numbers = itertools.count(1)
        self._changed = changed
        self._stopped = threading.Event()
        self._unmet: set[SiteName] = set()
        self._after: dict[SiteName, int] = {}
        """Up to where each site was heard."""
        self._ended: set[SiteName] = set()
        self._lost_at: dict[SiteName, float] = {}
        self._alive: Mapping[SiteName, RunState] = {}
        self._thread = threading.Thread(target=self._run, name=f"follow {run}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Give back the place that was taken at every site; twice is fine."""
        self._stopped.set()
        self._thread.join(_FIND_SECONDS)
        self.sites.close()

    @property
    def has_caught_up(self) -> bool:
        """Whether what had happened before it began to listen is folded."""
        with self.lock:
            return all(
                self._after.get(site, 0) >= report.last_event or site in self.silent or site in self._ended
                for site, report in self.reports.items()
            )

    def hear(self, states: Mapping[SiteName, RunState]) -> None:
        """What the sites said of the run when they were last asked: a run that had failed may live again."""
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
                logger.exception("fault while following %s", self.run)
                self._note(SiteName(""), "bad", f"the dashboard met a fault: {type(error).__name__}")

    def _find(self) -> bool:
        reports, refusals = discover(self.sites, self.run)
        with self.lock:
            self.silent = {refusal.site: refusal.error for refusal in refusals}
            if reports:
                self.history = RunHistory(reported_run(self.run, reports))
                self._take_reports(reports, refusals)
        self._told()
        return bool(reports)

    def _follow(self) -> None:
        assert self.history is not None
        with Streams(self.sites, self.run) as streams:
            for site in self.history.progress.sites:
                streams.listen(site)
            while not self._stopped.is_set():
                news = streams.next(_LOOK_SECONDS)
                if news is not None:
                    for site in self._take(news):
                        streams.listen(site)
                for site in [site for site in self._ended if self._lives_again(site)]:
                    self._ended.discard(site)
                    streams.listen(site, self._after.get(site, 0))
                for site in [site for site in self.silent if self._is_back(site)]:
                    self._return(site)

    def _is_back(self, site: SiteName) -> bool:
        """A site that has nothing new to tell: its stream stands again, and it answers when it is asked."""
        return site in self._alive and time.monotonic() - self._lost_at.get(site, 0.0) > _STANDS_SECONDS

    def _return(self, site: SiteName) -> None:
        self._ask(site)
        with self.lock:
            if self.silent.pop(site, None):
                self._note(site, "info", "answers again")
        self._told()

    def _lives_again(self, site: SiteName) -> bool:
        """Whether a run that had ended at a site goes on there; the list may be older than the end, so it is asked."""
        state = self._alive.get(site)
        if state is None or state.is_final:
            return False
        self._forget(site)
        reports = self._ask(site)
        return site in reports and not reports[site].state.is_final

    def _forget(self, site: SiteName) -> None:
        self._alive = {other: state for other, state in self._alive.items() if other != site}

    def _take(self, news: News) -> list[SiteName]:
        """Fold it; the sites that became known by it."""
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
                    self._note(news.site, "warning", f"does not answer ({news.error.code}); still trying")
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
        self._told()
        return found

    def _fold(self, history: RunHistory, event: Event) -> None:
        self._after[event.site] = event.seq
        history.add(event)
        text = narrate(event)
        if text is not None:
            bad = event.kind in (EventKind.RUN, EventKind.STEP) and event.data["state"] in _BAD
            level = "bad" if bad else "warning" if event.kind in TROUBLE else "info"
            self.log.append(LogLine(next(self._numbers), event.time, event.site, level, clean(text, 600)))

    def _meet(self, site: SiteName) -> list[SiteName]:
        """A site that was out of reach when the run was looked for may know more of it."""
        assert self.history is not None
        self._unmet.discard(site)
        reports, refusals = discover(self.sites, self.run)
        with self.lock:
            found = self.history.extend(reported_run(self.run, reports, self.history.progress.steps))
            self._take_reports(reports, refusals)
        return found

    def _ask(self, site: SiteName) -> Mapping[SiteName, RunReport]:
        """Whose work a site has, and which ways were closed, is in its report alone."""
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
        """A sentence of the dashboard's own: who answers is no event of the run."""
        with self.lock:
            self.log.append(LogLine(next(self._numbers), time.time(), site, level, clean(text, 600)))
        self._told()

    def _told(self) -> None:
        with self.lock:
            self.version += 1
        self._changed()
