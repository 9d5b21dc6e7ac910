"""What can go wrong inside a daemon: it dies after a commit, or others come in between two looks at
its journal.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from fedelmy_node.domain.errors import FedelmyError
from tests.chaos.chance import Choices, Odds
from tests.support.stand_ins import Clock, Daemon

__all__ = ["Action", "FaultError", "Mishaps"]


class Action(NamedTuple):
    """Something that can happen next."""

    kind: str
    """loop, watch, hang up, carry or train."""
    site: str
    about: str
    do: Callable[[], None]


class FaultError(AssertionError):
    """Something happened that must not happen in any schedule."""


class _Crash(BaseException):
    """A site dies at a commit; nothing of the product catches it."""


class Mishaps(ABC):
    """A world in which code of the product runs, one daemon at a time."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.odds = Odds()
        self.clock = Clock()
        self.trace: list[str] = []
        """What happened, for people."""
        self._running: Daemon | None = None
        self._crash_in = self._slip_in = 0

    @abstractmethod
    def boot(self, name: str) -> None: ...

    @abstractmethod
    def kill(self, name: str) -> None: ...

    @abstractmethod
    def actions(self, asked: str | None = None) -> list[Action]: ...

    def note(self, *words: str) -> None:
        self.trace.append(
            f"{self.clock.now - Clock.START:5.1f} {' '.join(word for word in words if word)}"
        )

    def home(self) -> Daemon:
        """The daemon whose code runs."""
        assert self._running is not None
        return self._running

    @contextmanager
    def inside(
        self, daemon: Daemon, *, executor_thread: bool = True, safely: bool = False
    ) -> Iterator[None]:
        """Code of the product runs in a daemon, which may die of it."""
        if self._running is daemon:  # on another thread, in the middle of what the executor does
            yield
            return
        name = daemon.site.name
        self._running = daemon
        if not safely:
            self._crash_in = (
                1 + self.choices.pick(8) if self.choices.happens(self.odds.crash) else 0
            )
            self._slip_in = (
                1 + self.choices.pick(16)
                if executor_thread and self.choices.happens(self.odds.slip)
                else 0
            )
        try:
            yield
        except _Crash:
            self._running = None
            self.kill(name)
            if not self.choices.happens(self.odds.stays):
                self.boot(name)
        except (FedelmyError, FaultError) as error:
            if executor_thread and not isinstance(error, FaultError):
                raise FaultError(f"{name}: {traceback.format_exc()}") from error
            raise
        except Exception as error:
            raise FaultError(f"{name}: {traceback.format_exc()}") from error
        finally:
            self._running = None
            self._crash_in = self._slip_in = 0

    def touched(self, name: str, committed: bool) -> None:
        """A journal was written or looked at: the moment at which others may come in between, or a
        site dies.
        """
        if self._running is None or self._running.site.name != name:
            return
        if self._slip_in:
            self._slip_in -= 1
            if not self._slip_in and (possible := self.actions(asked=name)):
                action = possible[self.choices.pick(len(possible))]
                self.note("  meanwhile:", *action[:3])
                action.do()
        if committed and self._crash_in:
            self._crash_in -= 1
            if not self._crash_in:
                raise _Crash
