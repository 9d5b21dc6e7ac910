"""How a run is shown: a live table in a terminal, plain lines in a pipe, one JSON object per line for machines."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol, Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedelmy_launcher.progress import RunProgress, SiteProgress
from fedelmy_node.cli.frame import emit_json
from fedelmy_node.config.decode import encode
from fedelmy_node.domain.events import Event
from fedelmy_node.domain.narration import bytes_text, narrate, percent

__all__ = ["Screen", "open_screen", "site_table"]

_STYLES = {
    "done": "green", "failed": "bold red", "aborted": "bold red", "cancelled": "yellow", "skipped": "yellow",
    "running": "cyan", "pending": "yellow",
}  # fmt: skip


class Screen(Protocol):
    """Where progress goes."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def note(self, text: str) -> None:
        """One line of news that belongs to no event."""

    def event(self, event: Event) -> None:
        """An event was taken into the progress."""


def open_screen(progress: RunProgress, *, as_json: bool) -> Screen:
    """The screen that fits where the output goes."""
    if as_json:
        return _JsonLines()
    console = Console(stderr=False)
    return _LiveTable(progress, console) if console.is_terminal and not console.is_dumb_terminal else _PlainLines()


class _LiveTable:
    def __init__(self, progress: RunProgress, console: Console) -> None:
        self._progress = progress
        self._notes: list[str] = []
        self._live = Live(console=console, refresh_per_second=8, get_renderable=self._render, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        self._notes = [*self._notes[-2:], text]

    def event(self, event: Event) -> None:
        pass  # the table is drawn from the progress at its own pace

    def _render(self) -> Group:
        title = f"run {self._progress.run}   {self._progress.seconds:.0f} s"
        return Group(site_table(self._progress, title), *(Text(note, style="dim") for note in self._notes))


class _Lines:
    """Output that is not redrawn: one line after the other."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout.flush()


class _PlainLines(_Lines):
    def note(self, text: str) -> None:
        click.echo(text)

    def event(self, event: Event) -> None:
        line = narrate(event)
        if line:
            click.echo(f"{event.site:<12} {line}")


class _JsonLines(_Lines):
    def note(self, text: str) -> None:
        emit_json({"note": text})

    def event(self, event: Event) -> None:
        emit_json({"event": encode(event)})


def site_table(progress: RunProgress, title: str) -> Table:
    """One line per site."""
    table = Table(title=title, title_justify="left", header_style="bold", expand=False)
    for name in ("site", "state", "pool", "epoch", "loss", "val. acc.", "sent", "test acc."):
        table.add_column(name, justify="left" if name in ("site", "state") else "right", no_wrap=True)
    notes = []
    for site in progress.sites.values():
        table.add_row(*_cells(site))
        if site.state != "done":  # what troubled a site that has finished is no trouble any more
            notes += [f"{site.site}: {problem}" for problem in (site.problem, *site.unreachable.values()) if problem]
    if notes:  # below the table: a long one must not squeeze the columns
        table.caption, table.caption_justify = Text("\n".join(notes), style="yellow"), "left"
    return table


def _cells(site: SiteProgress) -> list[str | Text]:
    state = site.doing if site.state == "running" and site.doing else site.state
    if site.moving:
        state = f"{state} {site.moving}"
    if site.skipped:
        state = "skipped"
    if site.silent:
        state = "skipped, no answer" if site.skipped else "no answer"
    pool = f"{site.member}/{site.members}" if site.members else ""
    return [
        site.site,
        Text(state, style=_STYLES.get(site.shown_state, "")),
        pool,
        f"{site.epoch}/{site.epochs}" if site.epochs else "",
        _number(site.loss) or ("-" if site.epoch else ""),
        percent(site.validation) or ("-" if site.epoch else ""),
        bytes_text(site.sent) if site.sent else "",
        percent(site.accuracy) or ("" if site.evaluation is None else "-"),
    ]


def _number(value: float | None) -> str:
    """Short, whatever it is: a training that diverges has losses of any size."""
    return "" if value is None else f"{value:.3f}" if abs(value) < 1e6 else f"{value:.3g}"
