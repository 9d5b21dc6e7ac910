"""How a run is shown: a live view in a terminal, plain lines in a pipe, one JSON object per line for machines."""

from __future__ import annotations

import sys
import time
from collections import deque
from types import TracebackType
from typing import Final, Protocol, Self

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from fedelmy_launcher.live.marks import marks_for
from fedelmy_launcher.live.table import live_table, trouble_of
from fedelmy_launcher.live.waiting import training_left
from fedelmy_launcher.progress import RunProgress
from fedelmy_node.cli.frame import emit_json
from fedelmy_node.config.decode import encode
from fedelmy_node.domain.events import Event, StepState
from fedelmy_node.domain.narration import duration_text, narrate
from fedelmy_node.domain.plan import StepKind

__all__ = ["Screen", "open_screen", "live_view"]

_REFRESHES_PER_SECOND: Final = 8
_NEWS: Final = 4
"""Lines of news below the table."""
_TROUBLES: Final = 8
_LEAST_SITES: Final = 3
"""However low the terminal is."""


class Screen(Protocol):
    """Where progress goes."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def note(self, text: str) -> None:
        """One line of news that belongs to no event."""

    def alert(self, text: str) -> None:
        """A warning that no event tells, with its code, as it is found."""

    def event(self, event: Event) -> None:
        """An event was taken into the progress."""


def open_screen(progress: RunProgress, *, as_json: bool) -> Screen:
    """The screen that fits where the output goes."""
    if as_json:
        return _JsonLines()
    console = Console(stderr=False)
    return _LiveView(progress, console) if console.is_terminal and not console.is_dumb_terminal else _PlainLines()


class _LiveView:
    def __init__(self, progress: RunProgress, console: Console) -> None:
        self._progress = progress
        self._console = console
        self._news: deque[str] = deque(maxlen=_NEWS)
        self._live = Live(
            console=console, refresh_per_second=_REFRESHES_PER_SECOND, get_renderable=self._render, transient=True
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After a good end the result is printed; otherwise the last view is what people want to go on looking at.
        self._live.transient = kind is None
        self._live.stop()

    def note(self, text: str) -> None:
        self._news.append(f"{time.strftime('%H:%M:%S')}  {text}")

    def alert(self, text: str) -> None:
        pass  # the view is drawn from the progress at its own pace

    def event(self, event: Event) -> None:
        line = narrate(event)
        if line:
            when = time.strftime("%H:%M:%S", time.localtime(_nameable(event.time)))
            self._news.append(f"{when}  {event.site}: {line}")

    def _render(self) -> RenderableType:
        with self._progress.lock:
            return live_view(self._progress, self._console, list(self._news))


def _nameable(seconds: float) -> float:
    """Another site's clock may say anything."""
    return min(max(seconds, 0.0), 2.5e11)


def live_view(progress: RunProgress, console: Console, news: list[str], now: float | None = None) -> RenderableType:
    """Title, table, what is wrong, and the last news: as much as the terminal has room for."""
    now = time.time() if now is None else now
    marks = marks_for(console.encoding)
    width, height = console.size.width, console.size.height
    troubles = [f"{site.site}: {text}" for site in progress.sites.values() for text in trouble_of(site)]
    warnings = [*progress.alerts, *troubles]
    if len(warnings) > _TROUBLES:
        warnings = [*warnings[:_TROUBLES], f"and {len(warnings) - _TROUBLES} more"]
    # Title, summary, head and rule of the table, and two lines for each warning, which may be long.
    room = max(_LEAST_SITES, height - 6 - len(news) - 2 * len(warnings))
    parts: list[RenderableType] = [
        Text.assemble((f"run {progress.run}", "bold"), f"   {duration_text(progress.seconds)}", overflow="ellipsis"),
        Text(_summary(progress, now), style="dim", no_wrap=True, overflow="ellipsis"),
        live_table(progress, width, marks, now, room),
    ]
    parts += [Text(f"! {text}", style="yellow") for text in warnings]
    parts += [Text(marks.cut(line, width), style="dim", no_wrap=True) for line in news]
    return Group(*parts)


def _summary(progress: RunProgress, now: float) -> str:
    """How far the run is as a whole, and how long it will train, as far as that can be said honestly."""
    trained, to_train = _share(progress, StepKind.TRAIN)
    merged, to_merge = _share(progress, StepKind.MERGE)
    if trained == to_train and to_train:
        there, receivers = _share(progress, StepKind.DELIVER)
        merges = f"merged: {merged} of {to_merge}; " if to_merge else ""
        return f"all have trained; {merges}the result has reached {there} of {receivers}"
    visits = " visits" if to_train > len(progress.sites) else ""
    texts = [f"trained: {trained} of {to_train}{visits}" if to_train else ""]
    texts += [f"merged: {merged} of {to_merge}"] if to_merge else []
    forecast = training_left(progress, now)
    return "; ".join([*texts, *([forecast.sentence()] if forecast else [])])


def _share(progress: RunProgress, kind: StepKind) -> tuple[int, int]:
    """How many steps of a kind are done, and how many there are."""
    steps = [step.id for step in progress.steps if step.kind == kind]
    return sum(progress.state_of(step) == StepState.DONE for step in steps), len(steps)


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
