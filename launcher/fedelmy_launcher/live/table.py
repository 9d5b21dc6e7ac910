"""The table of a run: one line per site, in as many columns as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from fedelmy_launcher.live.crowd import Together, rows_of
from fedelmy_launcher.live.marks import ASCII, UNICODE, Marks
from fedelmy_launcher.live.waiting import doing_texts
from fedelmy_launcher.progress import RunProgress
from fedelmy_launcher.site_progress import LOSSES, SiteProgress
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.narration import bytes_text, duration_text, percent

__all__ = ["live_table", "site_table", "trouble_of"]

_STYLES: Final = {
    "done": "green", "failed": "bold red", "aborted": "bold red", "cancelled": "yellow", "expired": "yellow",
    "skipped": "yellow", "pending": "yellow", "unknown": "yellow",
}  # fmt: skip
_ASCII_HEAD: Final = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
_GAP: Final = 2
_LEAST_TOGETHER: Final = 10
"""With fewer sites, hardly a terminal is so low that some must share a line."""
_DOING_LEAST, _DOING_GOOD, _DOING_MOST = 24, 40, 50
_NAME_MOST: Final = 20
_SPARK_LEAST: Final = 8
_DROPPED: Final = (
    (), ("sent",), ("sent", "spark"), ("sent", "spark", "epoch"), ("sent", "spark", "epoch", "loss"),
    ("sent", "spark", "epoch", "loss", "pool", "accuracy"),
)  # fmt: skip
"""What is left out, one after the other, where there is no room for all columns."""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    width: int
    cell: Callable[[SiteProgress], str]
    right: bool = True


def live_table(progress: RunProgress, width: int, marks: Marks, now: float, lines: int = 1000) -> Table:
    """The run as it is at this moment, in `width` columns; with more rows than `lines`, those where most happens."""
    sites = list(progress.sites.values())
    columns, doing_width = _fitting(_columns(progress, marks), width, marks)
    table = _table(marks)
    for column in columns:
        # Of a fixed width: a table that is redrawn must not dance.
        table.add_column(column.name, width=column.width, no_wrap=True, justify="right" if column.right else "left")
        if column.name == "site":
            table.add_column("", width=doing_width, no_wrap=True)
    rows = rows_of(progress, lines)
    shown = _busiest(progress, rows, lines)
    for row in shown:
        if isinstance(row, Together):
            table.add_row(f"{len(row.sites)} sites", Text(_longest(row.texts, doing_width, marks), style="dim"))
            continue
        text = Text(_longest(doing_texts(progress, row, marks, now), doing_width, marks), style=_style(row))
        cells: list[str | Text] = [marks.cut(column.cell(row), column.width) for column in columns]
        table.add_row(cells[0], text, *cells[1:])
    out = {name for row in rows if row not in shown for name in _names(row)}
    if out:
        done = sum(site.state == RunState.DONE for site in sites if site.site in out)
        table.caption = f"and {len(out)} sites more, {done} of them done"
        table.caption_justify = "left"
    return table


def _names(row: SiteProgress | Together) -> Sequence[str]:
    return row.sites if isinstance(row, Together) else (row.site,)


def site_table(progress: RunProgress, title: str, marks: Marks = UNICODE) -> Table:
    """The run as it ended, or as it stands: what remains on the screen."""
    table = _table(marks)
    table.title, table.title_justify, table.title_style = title, "left", "bold"
    visits = ["visits"] if _has_visits(progress) else []
    for name in ("site", "state", *visits, "pool", "trained", "val. acc.", "sent", "test acc."):
        left = name in ("site", "state", "pool")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "site", overflow="fold")
    for site in progress.sites.values():
        silent = site.silent and not site.gone
        state = site.shown_state + (", no answer" if silent else "")
        table.add_row(
            site.site,
            Text(state, style=_style(site)),
            *([_visit(progress, site)] if visits else []),
            marks.pool(site.members_done, site.member, site.members),
            duration_text(site.seconds) if site.seconds else "",
            percent(site.validation) or ("-" if site.epoch else ""),
            bytes_text(site.sent) if site.sent else "",
            percent(site.accuracy) or ("" if site.evaluation is None else "-"),
        )
    notes = [f"{site.site}: {text}" for site in progress.sites.values() for text in trouble_of(site)]
    if notes:  # below the table: a long one must not squeeze the columns
        table.caption, table.caption_justify = Text("\n".join(notes), style="yellow"), "left"
    return table


def trouble_of(site: SiteProgress) -> list[str]:
    """What people should know of a site that has not finished; what troubled one that has is no trouble any more."""
    if site.state == RunState.DONE:
        return []
    retries = [f"hand-over to {h.peer}: {h.retry}" for h in site.handovers.values() if h.retry]
    return [text for text in (site.problem, *site.unreachable.values(), *retries) if text]


def _table(marks: Marks) -> Table:
    lines = _ASCII_HEAD if marks is ASCII else box.SIMPLE_HEAD
    return Table(box=lines, header_style="bold", show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))


def _columns(progress: RunProgress, marks: Marks) -> dict[str, _Column]:
    """All of them, by key, from left to right."""
    sites = progress.sites.values()
    together = len(f"{len(sites)} sites") if len(sites) >= _LEAST_TOGETHER else 4
    name = min(_NAME_MOST, max([together, *(len(site.site) for site in sites)]))
    epochs = max((len(str(site.epochs)) for site in sites), default=1)
    pool = max((len(marks.pool(0, 0, site.members)) for site in sites), default=0)
    return {
        "site": _Column("site", name, lambda site: site.site, right=False),
        **({"visit": _Column("visit", 5, lambda site: _visit(progress, site))} if _has_visits(progress) else {}),
        "pool": _Column("pool", max(4, pool), lambda site: marks.pool(*_pool(site)), right=False),
        "epoch": _Column("epoch", max(5, 2 * epochs + 1), _epoch),
        "spark": _spark(marks, LOSSES),
        "loss": _Column("", 6, lambda site: _number(site.loss) or ("-" if site.epoch else "")),
        "accuracy": _Column("accuracy", 11, _accuracy),
        "sent": _Column("sent", 8, lambda site: bytes_text(site.sent) if site.sent else ""),
    }


def _fitting(columns: dict[str, _Column], width: int, marks: Marks) -> tuple[list[_Column], int]:
    """The columns for which there is room, and what is left for what a site does."""
    kept, free = columns, 0
    for dropped in _DROPPED:
        kept = {key: column for key, column in columns.items() if key not in dropped}
        free = width - sum(column.width + _GAP for column in kept.values())
        if "spark" in kept:  # it gets shorter before anything else goes
            length = max(_SPARK_LEAST, min(LOSSES, LOSSES - (_DOING_GOOD - free)))
            kept["spark"] = _spark(marks, length)
            free += LOSSES - length
        if free >= _DOING_LEAST:
            break
    if "spark" not in kept and "loss" in kept:
        kept["loss"] = replace(kept["loss"], name="loss")
    return list(kept.values()), max(8, min(free, _DOING_MOST))


def _spark(marks: Marks, width: int) -> _Column:
    return _Column("loss", width, lambda site: marks.sparkline(site.losses, width), right=False)


def _longest(texts: Sequence[str], width: int, marks: Marks) -> str:
    return next((text for text in texts if len(text) <= width), marks.cut(texts[-1], width))


def _busiest(progress: RunProgress, rows: list[SiteProgress | Together], lines: int) -> list[SiteProgress | Together]:
    """As many rows as there are lines, in their order: those at work or in trouble first, then those still to come."""
    if len(rows) <= lines:
        return rows

    def rank(row: SiteProgress | Together) -> int:
        if isinstance(row, Together):
            return 3
        if row.doing or row.handovers or row.silent or trouble_of(row):
            return 0
        return 2 if row.is_final or progress.next_step(row.site) is None else 1

    chosen = sorted(range(len(rows)), key=lambda number: rank(rows[number]))[: max(1, lines - 1)]
    return [rows[number] for number in sorted(chosen)]


def _has_visits(progress: RunProgress) -> bool:
    return any(progress.visits_of(site)[1] > 1 for site in progress.sites)


def _visit(progress: RunProgress, site: SiteProgress) -> str:
    """The one that it is at, or will be at next."""
    over, visits = progress.visits_of(site.site)
    return f"{min(over + 1, visits)}/{visits}" if visits else ""


def _pool(site: SiteProgress) -> tuple[int, int, int]:
    return site.members_done, site.member if site.doing else 0, site.members


def _epoch(site: SiteProgress) -> str:
    return f"{site.epoch}/{site.epochs}" if site.epoch and site.doing in ("warm-up", "training") else ""


def _accuracy(site: SiteProgress) -> str:
    """On the validation data while it trains, on the test data once the result was evaluated."""
    if site.evaluation is not None:
        return f"{percent(site.accuracy) or '-'} test"
    return f"{percent(site.validation) or '-'} val." if site.epoch else ""


def _style(site: SiteProgress) -> str:
    if site.silent:
        return "bold yellow"
    if site.state == RunState.RUNNING and not site.skipped:
        return "cyan" if site.doing or site.handovers else "dim"
    return _STYLES.get(site.shown_state, "")


def _number(value: float | None) -> str:
    """Short, whatever it is: a training that diverges has losses of any size."""
    if value is None:
        return ""
    text = f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"
    return text if len(text) <= 6 else f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
