"""What a command is doing, for whoever waits longer than two seconds; shared with the launcher."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Final, Self

import click

__all__ = ["Patience"]

_SECONDS: Final = 2.0


class Patience:
    """Says on the standard error what takes so long; in a terminal the line goes again when it is done."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over()

    def doing(self, what: str) -> None:
        """Something begins that may take long."""
        self.over()
        if not self._quiet:
            self._timer = threading.Timer(_SECONDS, self._show, (what,))
            self._timer.daemon = True
            self._timer.start()

    def over(self) -> None:
        """It is done, or has something to show."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._shown and self._terminal:
                click.echo("\r\033[K", nl=False, err=True)
            self._shown = False

    def _show(self, what: str) -> None:
        with self._lock:
            if self._timer is not None:  # it was not over meanwhile
                click.echo(f"  ... {what}", nl=not self._terminal, err=True)
                self._shown = True
