"""The table of a run: one line per site, with as many columns as fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from rich import box
from rich.table import Table
from rich.text import Text

from fedelmy_launcher.view.activity_text import doing_texts
from fedelmy_launcher.view.glyphs import ASCII, UNICODE, Marks
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_launcher.view.row_grouping import Together, rows_of
from fedelmy_launcher.view.site_progress import LOSSES, SiteProgress
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.text import bytes_text, duration_text, percent

_STYLES: Final = {
    "done": "green",
    "failed": "bold red",
    "aborted": "bold red",
    "cancelled": "yellow",
    "expired": "yellow",
    "skipped": "yellow",
    "pending": "yellow",
    "unknown": "yellow",
}
_ASCII_HEAD: Final = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
_GAP: Final = 2
_MIN_TOGETHER: Final = 10
"""With fewer sites, they rarely have to share a line."""
_DOING_MIN, _DOING_GOOD, _DOING_MAX = 24, 40, 50
_NAME_MAX: Final = 20
_SPARK_MIN: Final = 8
_DROPPED: Final = (
    (),
    ("sent",),
    ("sent", "spark"),
    ("sent", "spark", "epoch"),
    ("sent", "spark", "epoch", "loss"),
    ("sent", "spark", "epoch", "loss", "pool", "accuracy"),
)
"""Columns to drop, in this order, until the others fit."""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    width: int
    cell: Callable[[SiteProgress], str]
    right: bool = True


def live_table(
    progress: RunProgress, width: int, marks: Marks, now: float, lines: int = 1000
) -> Table:
    """The current state in `width` columns and at most `lines` rows, the busiest sites first."""
    sites = list(progress.sites.values())
    columns, doing_width = _fitting(_columns(progress, marks), width, marks)
    table = _table(marks)
    for column in columns:
        # A fixed width keeps columns in place when the table is redrawn.
        side: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(column.name, width=column.width, no_wrap=True, justify=side)
        if column.name == "site":
            table.add_column("", width=doing_width, no_wrap=True)
    rows = rows_of(progress, lines)
    shown = _busiest(progress, rows, lines)
    for row in shown:
        if isinstance(row, Together):
            shared = Text(_longest(row.texts, doing_width, marks), style="dim")
            table.add_row(f"{len(row.sites)} sites", shared)
            continue
        doing = _longest(doing_texts(progress, row, marks, now), doing_width, marks)
        cells = [marks.cut(column.cell(row), column.width) for column in columns]
        table.add_row(cells[0], Text(doing, style=_style(row)), *cells[1:])
    out = {name for row in rows if row not in shown for name in _names(row)}
    if out:
        done = sum(site.state == RunState.DONE for site in sites if site.site in out)
        table.caption = f"and {len(out)} more sites, {done} of them done"
        table.caption_justify = "left"
    return table


def _names(row: SiteProgress | Together) -> Sequence[str]:
    return row.sites if isinstance(row, Together) else (row.site,)


def site_table(progress: RunProgress, title: str, marks: Marks = UNICODE) -> Table:
    """The final or current state, for permanent output."""
    table = _table(marks)
    table.title, table.title_justify, table.title_style = title, "left", "bold"
    visits = ["visits"] if _has_visits(progress) else []
    for name in ("site", "state", *visits, "pool", "trained", "val. acc.", "sent", "test acc."):
        side: Literal["left", "right"] = "left" if name in ("site", "state", "pool") else "right"
        table.add_column(name, justify=side, no_wrap=name != "site", overflow="fold")
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
    if notes := all_troubles(progress):  # below the table: long ones would squeeze the columns
        table.caption, table.caption_justify = Text("\n".join(notes), style="yellow"), "left"
    return table


def all_troubles(progress: RunProgress) -> list[str]:
    """The problems of all sites, each with the site's name."""
    sites = progress.sites.values()
    return [f"{site.site}: {text}" for site in sites for text in trouble_of(site)]


def trouble_of(site: SiteProgress) -> list[str]:
    """The problems of a site; those of a finished one no longer matter."""
    if site.state == RunState.DONE:
        return []
    retries = [f"hand-over to {h.peer}: {h.retry}" for h in site.handovers.values() if h.retry]
    return [text for text in (site.problem, *site.unreachable.values(), *retries) if text]


def _table(marks: Marks) -> Table:
    lines = _ASCII_HEAD if marks is ASCII else box.SIMPLE_HEAD
    return Table(
        box=lines, header_style="bold", show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0)
    )


def _columns(progress: RunProgress, marks: Marks) -> dict[str, _Column]:
    """All columns by key, from left to right."""
    sites = progress.sites.values()
    together = len(f"{len(sites)} sites") if len(sites) >= _MIN_TOGETHER else 4
    name = min(_NAME_MAX, max([together, *(len(site.site) for site in sites)]))
    epochs = max((len(str(site.epochs)) for site in sites), default=1)
    pool = max((len(marks.pool(0, 0, site.members)) for site in sites), default=0)
    visit = {"visit": _Column("visit", 5, lambda site: _visit(progress, site))}
    return {
        "site": _Column("site", name, lambda site: site.site, right=False),
        **(visit if _has_visits(progress) else {}),
        "pool": _Column("pool", max(4, pool), lambda site: marks.pool(*_pool(site)), right=False),
        "epoch": _Column("epoch", max(5, 2 * epochs + 1), _epoch),
        "spark": _spark(marks, LOSSES),
        "loss": _Column("", 6, lambda site: _number(site.loss) or ("-" if site.epoch else "")),
        "accuracy": _Column("accuracy", 11, _accuracy),
        "sent": _Column("sent", 8, lambda site: bytes_text(site.sent) if site.sent else ""),
    }


def _fitting(columns: dict[str, _Column], width: int, marks: Marks) -> tuple[list[_Column], int]:
    """The columns that fit, and the width that is left for the site's activity."""
    kept, free = columns, 0
    for dropped in _DROPPED:
        kept = {key: column for key, column in columns.items() if key not in dropped}
        free = width - sum(column.width + _GAP for column in kept.values())
        if "spark" in kept:  # shorten it before dropping a column
            length = max(_SPARK_MIN, min(LOSSES, LOSSES - (_DOING_GOOD - free)))
            kept["spark"] = _spark(marks, length)
            free += LOSSES - length
        if free >= _DOING_MIN:
            break
    if "spark" not in kept and "loss" in kept:
        kept["loss"] = replace(kept["loss"], name="loss")
    return list(kept.values()), max(8, min(free, _DOING_MAX))


def _spark(marks: Marks, width: int) -> _Column:
    return _Column("loss", width, lambda site: marks.sparkline(site.losses, width), right=False)


def _longest(texts: Sequence[str], width: int, marks: Marks) -> str:
    return next((text for text in texts if len(text) <= width), marks.cut(texts[-1], width))


def _busiest(
    progress: RunProgress, rows: list[SiteProgress | Together], lines: int
) -> list[SiteProgress | Together]:
    """Rows that fit, in order: prefer busy sites and problems, then sites still to come."""
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
    """The current or next visit."""
    over, visits = progress.visits_of(site.site)
    return f"{min(over + 1, visits)}/{visits}" if visits else ""


def _pool(site: SiteProgress) -> tuple[int, int, int]:
    return site.members_done, site.member if site.doing else 0, site.members


def _epoch(site: SiteProgress) -> str:
    return f"{site.epoch}/{site.epochs}" if site.is_fitting and site.epoch else ""


def _accuracy(site: SiteProgress) -> str:
    """On the validation data during training, on the test data after the evaluation."""
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
    """At most six characters: a diverging training has losses of any size."""
    if value is None:
        return ""
    text = f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"
    return text if len(text) <= 6 else f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
