"""What can go wrong inside a daemon: it dies after a commit or between the actions that follow, and
neighbours come in between them.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from fedelmy_node.domain.errors import FedelmyError
from tests.chaos.chance import Choices, Odds
from tests.support.stand_ins import Clock, Daemon

__all__ = ["CRASH_WITHIN", "Action", "FaultError", "Mishaps"]

CRASH_WITHIN: Final = 8
"""A crash comes at one of the first commits and actions of whatever a daemon does."""
_SLIP_WITHIN: Final = 9
"""Others come in at one of the first moments at which they can."""


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
    """A site dies after a commit or before an action; nothing of the product catches it."""


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
                1 + self.choices.pick(CRASH_WITHIN) if self.choices.happens(self.odds.crash) else 0
            )
            self._slip_in = (
                1 + self.choices.pick(_SLIP_WITHIN)
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
        """A journal was read or written, or an action is about to be carried out.

        Others may come in at any of these moments. A site may die unless it has only read.
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
