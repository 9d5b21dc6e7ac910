"""Many sites on one screen: those at work one by one, neighbours in the order that merely wait or are done as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from fedelmy_launcher.picture.geometry import CROWD
from fedelmy_launcher.progress import RunProgress
from fedelmy_launcher.site_progress import SiteProgress
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import site_of
from fedelmy_node.domain.plan import StepKind

__all__ = ["Together", "rest_of", "gathered", "rows_of", "span_text"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Together:
    """Sites side by side of which the same is to be said."""

    sites: tuple[str, ...]
    text: str

    @property
    def span(self) -> str:
        return span_text(self.sites)

    @property
    def texts(self) -> list[str]:
        """In several lengths."""
        span, word = self.span, self.text.split()[0].rstrip(",")
        return [f"{self.text}: {span}", f"{word}: {span}", f"{word}: {self.sites[0]}..{self.sites[-1]}", self.text]


def span_text(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def gathered(items: Iterable[T], text: Callable[[T], str], name: Callable[[T], str]) -> Iterator[T | Together]:
    """Neighbours with the same text as one; an empty text, or no neighbour with the same: the item itself."""
    for said, some in groupby(items, text):
        group = list(some)
        if said and len(group) > 1:
            yield Together(tuple(name(item) for item in group), said)
        else:
            yield from group


def rest_of(progress: RunProgress, site: SiteProgress) -> str:
    """What is to be said of a site at which nothing happens and nothing is wrong; empty if something does or is."""
    if site.doing or site.handovers or site.silent or site.gone or site.skipped or site.unreachable:
        return ""
    if site.state == RunState.RUNNING and not site.problem:
        return _wait_of(progress, site)
    return "done" if site.state == RunState.DONE else "" if site.problem or site.is_final else str(site.state)


def _wait_of(progress: RunProgress, site: SiteProgress) -> str:
    step = progress.next_step(site.site)
    if step is None:
        return "done here, the others are not yet"
    if step.kind in (StepKind.DELIVER, StepKind.EVALUATE):
        return "wait for the result"
    needs = progress.needs_of(step)
    before = progress.sites.get(site_of(needs[0])) if len(needs) == 1 else None
    is_next = before is not None and (before.doing or before.handovers)
    return "" if is_next else "wait for the others"


def rows_of(progress: RunProgress, lines: int) -> list[SiteProgress | Together]:
    """One row per site, or in a crowd, or where there is no room, one for all neighbours at rest."""
    sites = list(progress.sites.values())
    if len(sites) <= min(lines, CROWD):
        return [*sites]
    rows: Iterator[SiteProgress | Together] = gathered(sites, partial(rest_of, progress), attrgetter("site"))
    return list(rows)
