"""Iterators that wait for the journal to grow: a watcher's events, and whatever follows from a run's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from fedelmy_node.domain.events import Event, RunState
from fedelmy_node.domain.names import RunId
from fedelmy_node.errors import PeerError

if TYPE_CHECKING:
    from fedelmy_node.store.journal import Journal

__all__ = ["Stream", "EventStream", "StateStream"]

T = TypeVar("T")


class Stream:
    """Something that waits for commits; `close` ends it from any thread."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.closed = False

    def close(self) -> None:
        self.closed = True
        self._journal.wake()

    def _refuse_unless_closed(self) -> None:
        """A stream that ends before its time says so: whoever listens comes again."""
        if not self.closed:
            raise PeerError("E-PEER-UNREACHABLE", "the node shuts down")


class EventStream(Stream):
    """A run's events as they are committed, until the run ends here."""

    def __init__(self, journal: Journal, run: RunId, after: int) -> None:
        super().__init__(journal)
        self._run = run
        self._after = after

    def __iter__(self) -> Iterator[Event]:
        version: int | None = 0
        while version is not None:
            # The state is read first: events of a final state are committed with it.
            is_final = self._journal.state(self._run).is_final
            events = self._journal.events(self._run, self._after)
            for event in events:
                self._after = event.seq
                yield event
            if not events:
                if is_final:
                    return
                version = self._journal.next_version(self, version)
        self._refuse_unless_closed()


class StateStream(Stream, Generic[T]):
    """What `look` makes of a run, now and whenever it has become something else, until the run is over here."""

    def __init__(self, journal: Journal, look: Callable[[], tuple[RunState, T]], ended: Callable[[], None]) -> None:
        """`ended` is called once, when nobody listens any more."""
        super().__init__(journal)
        self._look = look
        self._ended = ended

    def __iter__(self) -> Iterator[T]:
        told: T | None = None
        version: int | None = 0
        while (version := self._journal.next_version(self, version)) is not None:
            state, seen = self._look()
            if seen != told:
                told = seen
                yield seen
            if state.is_over:
                return
        self._refuse_unless_closed()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._ended()
