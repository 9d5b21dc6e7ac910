"""Publish committed events: to the log, to listeners, and to streams that follow the journal.

Everything live goes through here, so that nothing is published before it is committed, or twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from fedelmy_node.domain.errors import PeerError
from fedelmy_node.domain.event_text import narrate
from fedelmy_node.domain.events import TROUBLE, Event, RunState
from fedelmy_node.domain.names import RunId
from fedelmy_node.domain.text import clean

if TYPE_CHECKING:
    from fedelmy_node.store.journal import Journal

logger = logging.getLogger(__name__)
_LINE_LIMIT: Final = 1000


class EventBus:
    """The event bus: called with each event after its commit, from the committing thread."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Event], None]] = []

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Call `listener` with every event from now on; it must be fast and thread-safe."""
        self._listeners.append(listener)

    def __call__(self, event: Event) -> None:
        _log(event)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # a listener must not stop a committed event
                extra = {"run": event.run, "step": event.step or ""}
                logger.exception("a listener failed on a %s event", event.kind, extra=extra)


def _log(event: Event) -> None:
    try:
        line = narrate(event)
    except (KeyError, TypeError, ValueError) as error:  # must not stop a committed event
        line = f"{event.kind} (no text: {error!r})"
    if line is None:
        return
    is_trouble = event.kind in TROUBLE or event.data.get("code")
    level = logging.WARNING if is_trouble else logging.INFO
    extra = {"run": event.run, "step": event.step or ""}
    # Messages of other sites must not add lines to the log.
    logger.log(level, "%s", clean(line, _LINE_LIMIT), extra=extra)


T = TypeVar("T")


class Stream:
    """Waits for commits; `close` ends it from any thread."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.closed = False

    def close(self) -> None:
        self.closed = True
        self._journal.wake()

    def _raise_unless_closed(self) -> None:
        """Report an early end, so that the client reconnects."""
        if not self.closed:
            raise PeerError("E-PEER-UNREACHABLE", "the node is shutting down")


class EventStream(Stream):
    """The events of a run as they are committed, until the run ends at this site."""

    def __init__(self, journal: Journal, run: RunId, after: int) -> None:
        super().__init__(journal)
        self._run, self._after = run, after

    def __iter__(self) -> Iterator[Event]:
        version: int | None = 0
        while version is not None:
            # Read the state first: a final state is committed together with its events.
            is_final = self._journal.state(self._run).is_final
            events = self._journal.events(self._run, self._after)
            for event in events:
                self._after = event.seq
                yield event
            if not events:
                if is_final:
                    return
                version = self._journal.next_version(self, version)
        self._raise_unless_closed()


class StateStream(Stream, Generic[T]):
    """Stream the result of `look` for a run, now and after each change, until it ends here.

    `ended` is called once, when the stream is closed.
    """

    def __init__(
        self, journal: Journal, look: Callable[[], tuple[RunState, T]], ended: Callable[[], None]
    ) -> None:
        super().__init__(journal)
        self._look, self._ended = look, ended

    def __iter__(self) -> Iterator[T]:
        last: tuple[int, T] | None = None
        version: int | None = 0
        while (version := self._journal.next_version(self, version)) is not None:
            repeats = self._journal.repeats
            state, current = self._look()
            if (repeats, current) != last:
                last = repeats, current
                yield current
            if state.is_over:
                return
        self._raise_unless_closed()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._ended()
