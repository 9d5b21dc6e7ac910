"""What one page is told: always the newest state, never a queue of old ones, so a slow browser costs no memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

from fedelmy_launcher.dashboard.board import Board, Watched
from fedelmy_launcher.dashboard.follower import Follower
from fedelmy_launcher.dashboard.view import run_view
from fedelmy_node.domain.names import RunId

__all__ = ["Feed"]

_BREATH_SECONDS: Final = 0.2
"""Between two states: more often, nobody could see it."""
_SHARE: Final = 10
"""And so many times as long as it took to make one: this machine may be training."""
_STILL_SECONDS: Final = 10.0
"""Without news, a word at least so often: a page or a tunnel that is gone is noticed by it."""
_LINES: Final = 200
"""Of the log at a time."""


class Feed:
    """The events of one page's stream, until the dashboard ends."""

    def __init__(self, board: Board, run: RunId | None) -> None:
        """`run`: None shows the newest there is, once there is one."""
        self._board = board
        self._run = run
        self._watched: Watched | None = None
        self._list = self._state = self._painting = -1
        self._line = 0
        self._breath_seconds = _BREATH_SECONDS

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        with ExitStack() as stack:
            yield "hello", {"run": self._run}
            while not self._board.is_closed:
                if self._watched is None:
                    self._choose(stack)
                news = list(self._news())
                yield from news or [("", None)]
                began = time.monotonic()
                with self._board.changed:
                    self._board.changed.wait_for(self._is_new, _STILL_SECONDS)
                    rest = self._breath_seconds - (time.monotonic() - began)
                    self._board.changed.wait_for(lambda: self._board.is_closed, max(0.0, rest))

    def _choose(self, stack: ExitStack) -> None:
        run = self._run or self._board.newest()
        if run is not None:
            self._watched = stack.enter_context(self._board.looking(RunId(run)))

    def _is_new(self) -> bool:
        if self._board.is_closed or self._board.version != self._list:
            return True
        watched = self._watched
        if watched is None:
            return False
        return watched.follower.version != self._state or watched.painter.version != self._painting

    def _news(self) -> Iterator[tuple[str, Any]]:
        version = self._board.version
        if version != self._list:
            self._list = version
            yield "runs", self._board.list
        watched = self._watched
        if watched is None:
            return
        if watched.follower.version != self._state:
            yield from self._states(watched.follower)
        if watched.painter.version != self._painting:
            self._painting = watched.painter.version
            yield "sections", [painted.encoded() for painted in watched.painter.sections.values()]

    def _states(self, follower: Follower) -> Iterator[tuple[str, Any]]:
        began = time.monotonic()
        with follower.lock:
            self._state = follower.version
            view = run_view(follower)
            lines = [line for line in follower.log if line.number > self._line]
        self._breath_seconds = max(_BREATH_SECONDS, _SHARE * (time.monotonic() - began))
        yield "run", view | {"now": time.time()}
        for begin in range(0, len(lines), _LINES):
            part = lines[begin : begin + _LINES]
            self._line = part[-1].number
            yield "log", [line.encoded() for line in part]
