"""Where committed events are told: to the log, and to whoever wants to count them.

The journal is what happened; everything that is said about it live goes through here, so nothing is said that was
not committed, and nothing that was committed is counted twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from fedelmy_node.domain.events import TROUBLE, Event
from fedelmy_node.domain.narration import narrate
from fedelmy_node.domain.texts import clean

__all__ = ["Telling", "tell"]

logger = logging.getLogger(__name__)
_LINE_LIMIT: Final = 1000


class Telling:
    """Called with each event after its commit, from the thread that committed it."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Event], None]] = []

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """From now on `listener` hears every event; it must be quick and may be called from any thread."""
        self._listeners.append(listener)

    def __call__(self, event: Event) -> None:
        tell(event)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # what is committed must be acted upon, counted or not
                extra = {"run": event.run, "step": event.step or ""}
                logger.exception("fault while an event of kind %s was counted", event.kind, extra=extra)


def tell(event: Event) -> None:
    """One line for an event that is committed, if it is worth one."""
    try:
        line = narrate(event)
    except (KeyError, TypeError, ValueError) as error:  # what is committed must be acted upon, told well or not
        line = f"{event.kind} (untold: {error!r})"
    if line is not None:
        troubled = event.kind in TROUBLE or event.data.get("code")
        level = logging.WARNING if troubled else logging.INFO
        # Reasons and other sites' messages are in it: one line stays one line.
        logger.log(level, "%s", clean(line, _LINE_LIMIT), extra={"run": event.run, "step": event.step or ""})
