"""The server-sent events of the page: which run it shows, its state, its sections and its log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

from fedelmy_launcher.view.dashboard.board import Board, Watched
from fedelmy_launcher.view.dashboard.follower import Follower
from fedelmy_launcher.view.dashboard.page_state import run_view
from fedelmy_node.domain.names import RunId

_PAUSE_SECONDS: Final = 0.2
_PAUSE_FACTOR: Final = 10
"""Pause this many times as long as building a state took: this machine may be training."""
_KEEPALIVE_SECONDS: Final = 10.0
"""Reveals a page or a tunnel that is gone."""
_LINES: Final = 200
"""Lines of the log per event."""


class Feed:
    """The server-sent events for one page, until the dashboard stops."""

    def __init__(self, board: Board, run: RunId | None) -> None:
        """`run` is None for the newest run, once there is one."""
        self._board = board
        self._run = run
        self._watched: Watched | None = None
        self._list = self._state = self._painting = -1
        self._line = 0
        self._pause_seconds = _PAUSE_SECONDS

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
                    self._board.changed.wait_for(self._is_new, _KEEPALIVE_SECONDS)
                    rest = self._pause_seconds - (time.monotonic() - began)
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
        self._pause_seconds = max(_PAUSE_SECONDS, _PAUSE_FACTOR * (time.monotonic() - began))
        yield "run", view | {"now": time.time()}
        for begin in range(0, len(lines), _LINES):
            part = lines[begin : begin + _LINES]
            self._line = part[-1].number
            yield "log", [line.encoded() for line in part]
