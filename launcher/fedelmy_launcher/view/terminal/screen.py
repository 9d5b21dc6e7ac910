"""Show a run: a live view in a terminal, plain lines in a pipe, or JSON lines."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol, Self

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from fedelmy_launcher.view.activity_text import training_left
from fedelmy_launcher.view.glyphs import marks_for
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_launcher.view.terminal.site_table import all_troubles, live_table
from fedelmy_node.cli.app import emit_json
from fedelmy_node.config.decode import encode
from fedelmy_node.domain.event_text import narrate
from fedelmy_node.domain.events import Event, StepState
from fedelmy_node.domain.names import StepId
from fedelmy_node.domain.step_traits import DELIVER, MERGE
from fedelmy_node.domain.text import duration_text

_REFRESHES_PER_SECOND: Final = 8
_NEWS: Final = 4
"""Lines of news below the table."""
_MAX_WARNINGS: Final = 8
_MIN_SITES: Final = 3
"""Shown even in a very low terminal."""


class Screen(AbstractContextManager["Screen", None], Protocol):
    """Shows progress."""

    def note(self, text: str) -> None:
        """Show a line that belongs to no event."""

    def alert(self, text: str) -> None:
        """Show a warning that no event carries; the text begins with its code."""

    def event(self, event: Event) -> None:
        """Show an event that is already part of the progress."""


def open_screen(progress: RunProgress, *, as_json: bool) -> Screen:
    """The screen that suits the output."""
    if as_json:
        return _JsonLines()
    console = Console(stderr=False)
    is_live = console.is_terminal and not console.is_dumb_terminal
    return _LiveView(progress, console) if is_live else _PlainLines()


class _LiveView:
    def __init__(self, progress: RunProgress, console: Console) -> None:
        self._progress = progress
        self._console = console
        self._news: deque[str] = deque(maxlen=_NEWS)
        self._live = Live(
            console=console,
            refresh_per_second=_REFRESHES_PER_SECOND,
            get_renderable=self._render,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # The result replaces the view; after an error, the last view stays.
        self._live.transient = kind is None
        self._live.stop()

    def note(self, text: str) -> None:
        self._news.append(f"{time.strftime('%H:%M:%S')}  {text}")

    def alert(self, text: str) -> None:
        pass  # the view reads `progress.alerts`

    def event(self, event: Event) -> None:
        line = narrate(event)
        if line:
            seconds = min(max(event.time, 0.0), 2.5e11)  # another site's clock may say anything
            when = time.strftime("%H:%M:%S", time.localtime(seconds))
            self._news.append(f"{when}  {event.site}: {line}")

    def _render(self) -> RenderableType:
        with self._progress.lock:
            return live_view(self._progress, self._console, list(self._news))


def live_view(
    progress: RunProgress, console: Console, news: list[str], now: float | None = None
) -> RenderableType:
    """Title, table, warnings and latest news, as far as they fit into the terminal."""
    now = time.time() if now is None else now
    marks = marks_for(console.encoding)
    width, height = console.size.width, console.size.height
    warnings = [*progress.alerts, *all_troubles(progress)]
    if len(warnings) > _MAX_WARNINGS:
        warnings = [*warnings[:_MAX_WARNINGS], f"and {len(warnings) - _MAX_WARNINGS} more"]
    # Title, summary, table head and rule, and two lines for each warning, which may be long.
    room = max(_MIN_SITES, height - 6 - len(news) - 2 * len(warnings))
    title, seconds = (f"run {progress.run}", "bold"), f"   {duration_text(progress.seconds)}"
    parts: list[RenderableType] = [
        Text.assemble(title, seconds, overflow="ellipsis"),
        Text(_summary(progress, now), style="dim", no_wrap=True, overflow="ellipsis"),
        live_table(progress, width, marks, now, room),
    ]
    parts += [Text(f"! {text}", style="yellow") for text in warnings]
    parts += [Text(marks.cut(line, width), style="dim", no_wrap=True) for line in news]
    return Group(*parts)


def _summary(progress: RunProgress, now: float) -> str:
    """The progress of the run as a whole, and the remaining training time if it is known."""
    training, others = [], dict[str, list[StepId]]()
    for step in progress.steps:
        traits = progress.traits(step.id)
        if traits.trains:
            training.append(step.id)
        elif traits.has_output and not traits.passes_on:
            others.setdefault("merged" if step.kind == MERGE else step.kind, []).append(step.id)
    trained, to_train = _share(progress, training)
    shares = {what: _share(progress, steps) for what, steps in others.items()}
    rest = [f"{what}: {done} of {every}" for what, (done, every) in shares.items()]
    if trained == to_train and to_train:
        receivers = [step.id for step in progress.steps if step.kind == DELIVER]
        there, every = _share(progress, receivers)
        delivered = f"result delivered to {there} of {every}"
        return "; ".join(["all sites have trained", *rest, delivered])
    visits = " visits" if to_train > len(progress.sites) else ""
    texts = [f"trained: {trained} of {to_train}{visits}"] if to_train else []
    forecast = training_left(progress, now)
    return "; ".join([*texts, *rest, *([forecast.sentence()] if forecast else [])])


def _share(progress: RunProgress, steps: Sequence[StepId]) -> tuple[int, int]:
    """The number of these steps that are finished, and of all of them."""
    return sum(progress.state_of(step) == StepState.DONE for step in steps), len(steps)


class _Lines:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()


class _PlainLines(_Lines):
    def note(self, text: str) -> None:
        click.echo(text)

    def alert(self, text: str) -> None:
        click.echo(f"warning {text}")

    def event(self, event: Event) -> None:
        line = narrate(event)
        if line:
            click.echo(f"{event.site:<12} {line}")


class _JsonLines(_Lines):
    def note(self, text: str) -> None:
        emit_json({"note": text})

    def alert(self, text: str) -> None:
        code, _, message = text.partition(": ")
        emit_json({"warning": {"code": code, "message": message}})

    def event(self, event: Event) -> None:
        emit_json({"event": encode(event)})
