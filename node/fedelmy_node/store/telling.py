"""The log: the journal is what happened, and this tells it to people."""

from __future__ import annotations

import logging
from typing import Final

from fedelmy_node.domain.events import Event, EventKind
from fedelmy_node.domain.narration import narrate
from fedelmy_node.domain.texts import clean

__all__ = ["tell"]

logger = logging.getLogger(__name__)
_LINE_LIMIT: Final = 1000


def tell(event: Event) -> None:
    """One line for an event that is committed, if it is worth one."""
    try:
        line = narrate(event)
    except (KeyError, TypeError, ValueError) as error:  # what is committed must be acted upon, told well or not
        line = f"{event.kind} (untold: {error!r})"
    if line is not None:
        trouble = (EventKind.RETRY, EventKind.WARNING, EventKind.UNREACHABLE, EventKind.AROUND)
        troubled = event.kind in trouble or event.data.get("code")
        level = logging.WARNING if troubled else logging.INFO
        # Reasons and other sites' messages are in it: one line stays one line.
        logger.log(level, "%s", clean(line, _LINE_LIMIT), extra={"run": event.run, "step": event.step or ""})
