"""Many sites on one screen: busy sites get a row each, idle neighbours share one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from fedelmy_launcher.view.graph_layout import CROWD
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_launcher.view.site_progress import SiteProgress
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import site_of
from fedelmy_node.domain.step_traits import DELIVER, EVALUATE

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Together:
    """Consecutive sites that share one text."""

    sites: tuple[str, ...]
    text: str

    @property
    def span(self) -> str:
        return span_text(self.sites)

    @property
    def texts(self) -> list[str]:
        """The text in several lengths, longest first."""
        span, first = self.span, self.text.split()[0].rstrip(",;")
        ends = f"{self.sites[0]}..{self.sites[-1]}"
        return [f"{self.text}: {span}", f"{first}: {span}", f"{first}: {ends}", self.text]


def span_text(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def gathered(
    items: Iterable[T], text: Callable[[T], str], name: Callable[[T], str]
) -> Iterator[T | Together]:
    """Group consecutive items with the same non-empty text; other items stay as they are."""
    for shared, some in groupby(items, text):
        group = list(some)
        if shared and len(group) > 1:
            yield Together(tuple(name(item) for item in group), shared)
        else:
            yield from group


def rest_of(progress: RunProgress, site: SiteProgress) -> str:
    """The text of an idle site without problems; empty for any other site."""
    if site.doing or site.handovers or site.silent or site.gone or site.skipped or site.unreachable:
        return ""
    if site.state == RunState.RUNNING and not site.problem:
        return _wait_of(progress, site)
    if site.state == RunState.DONE:
        return "done"
    return "" if site.problem or site.is_final else str(site.state)


def _wait_of(progress: RunProgress, site: SiteProgress) -> str:
    step = progress.next_step(site.site)
    if step is None:
        return "done here; other sites are still running"
    if step.kind in (DELIVER, EVALUATE):
        return "wait for the result"
    needs = progress.needs_of(step)
    before = progress.sites.get(site_of(needs[0])) if len(needs) == 1 else None
    is_next = before is not None and (before.doing or before.handovers)
    return "" if is_next else "wait for other sites"


def rows_of(progress: RunProgress, lines: int) -> list[SiteProgress | Together]:
    """One row per site; where there are too many, idle neighbours share a row."""
    sites = list(progress.sites.values())
    if len(sites) <= min(lines, CROWD):
        return [*sites]
    rows: Iterator[SiteProgress | Together] = gathered(
        sites, partial(rest_of, progress), attrgetter("site")
    )
    return list(rows)
