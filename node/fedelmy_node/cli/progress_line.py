"""A progress message for commands that take long; shared with the launcher."""

from __future__ import annotations

import sys
import threading
from typing import Any, Final, Self

import click

_SECONDS: Final = 2.0


class ProgressLine:
    """Prints a message to standard error after two seconds; in a terminal it is erased later."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.clear()

    def show(self, what: str) -> None:
        """Announce something that may take long."""
        self.clear()
        if not self._quiet:
            self._timer = threading.Timer(_SECONDS, self._print, (what,))
            self._timer.daemon = True
            self._timer.start()

    def clear(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._shown and self._terminal:
                click.echo("\r\033[K", nl=False, err=True)
            self._shown = False

    def _print(self, what: str) -> None:
        with self._lock:
            if self._timer is not None:  # not cleared in the meantime
                click.echo(f"  ... {what}", nl=not self._terminal, err=True)
                self._shown = True
