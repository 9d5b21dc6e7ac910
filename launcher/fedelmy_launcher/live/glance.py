"""One look at steps that are running: how far they are, from the last events of their sites."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from fedelmy_launcher.control import Sites
from fedelmy_launcher.listening import Streams
from fedelmy_launcher.outcome import Outline
from fedelmy_launcher.progress import RunProgress
from fedelmy_launcher.site_progress import SiteProgress
from fedelmy_node.domain.events import Event, StepState
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.narration import duration_text, percent
from fedelmy_node.domain.reports import RunReport

__all__ = ["glance", "pace_of", "pace_text"]

_LAST_EVENTS: Final = 100
"""Of a site: the newest epoch and the newest bytes are among them."""
_PATIENCE_SECONDS: Final = 3.0
"""Whoever does not tell its last events by then is shown without."""


def glance(sites: Sites, outline: Outline, reports: Mapping[SiteName, RunReport]) -> RunProgress:
    """The run with what its busy sites told last; nothing is waited for that has not happened yet."""
    progress = RunProgress(outline, began_before=True)
    progress.take(reports)
    awaited = {
        site: report.last_event
        for site, report in reports.items()
        if site in progress.sites and any(step.state == StepState.RUNNING for step in report.steps)
    }
    ends = time.monotonic() + _PATIENCE_SECONDS
    with Streams(sites, outline.run) as streams:
        for site, last in awaited.items():
            streams.listen(site, max(0, last - _LAST_EVENTS))
        while awaited:
            news = streams.next(ends - time.monotonic())
            if news is None:
                break
            if isinstance(news, Event):
                progress.add(news)
                if news.seq < awaited.get(news.site, 0):
                    continue
            awaited.pop(news.site, None)
    return progress


def pace_of(site: SiteProgress) -> dict[str, Any]:
    """How far a site's running step is, for machines; what it does not tell is left out."""
    known = {
        "doing": site.doing, "member": site.member, "members": site.members, "epoch": site.epoch,
        "epochs": site.epochs, "loss": site.loss, "validation_accuracy": site.validation,
        "seconds_left": site.seconds_left(time.time()),
    }  # fmt: skip
    return {key: value for key, value in known.items() if value is not None}


def pace_text(site: SiteProgress) -> str:
    """The same for people; empty if it has told nothing yet."""
    if not site.epoch:
        return ""
    who = f"pool member {site.member}/{site.members}" if site.member else "warm-up"
    parts = [who, f"epoch {site.epoch}/{site.epochs}"]
    if site.validation is not None:
        parts.append(f"validation {percent(site.validation)}")
    left = site.seconds_left(time.time())
    if left is not None:
        parts.append(f"about {duration_text(left)} left")
    return ", ".join(parts)
