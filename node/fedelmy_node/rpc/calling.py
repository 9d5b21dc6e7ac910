"""The call that a thread answers, for whoever writes down what happens: who makes it, from where, about what."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import FedelmyError

__all__ = ["Calling", "Refusal", "answering", "calling", "concern", "log_refusal"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Calling:
    """The call that a thread answers: who makes it from where, and what it is about as far as that is known."""

    who: str = ""
    """site/NAME, operator/NAME, administrator; nobody, if it was not let in."""
    origin: str = ""
    """The network address; `local` on the Unix socket."""
    run: str = ""
    edge: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A call that was answered with an error. Texts may come from the caller as they are."""

    calling: Calling
    method: str
    error: FedelmyError


_answered = threading.local()


def calling() -> Calling:
    """The call that this thread answers; empty if it answers none."""
    found: Calling = getattr(_answered, "calling", None) or Calling()
    return found


@contextmanager
def answering(call: Calling) -> Iterator[Calling]:
    """This thread answers this call, and no other meanwhile."""
    _answered.calling = call
    try:
        yield call
    finally:
        _answered.calling = None


def concern(run: str, edge: str = "") -> None:
    """A handler says what the call is about."""
    found = calling()
    found.run, found.edge = run, edge


def log_refusal(refusal: Refusal) -> None:
    """One line per refusal."""
    call, error = refusal.calling, refusal.error
    # Launchers ask whether a run is known before they make it: no news for a log.
    level = logging.DEBUG if error.code == "E-RUN-UNKNOWN" else logging.INFO
    extra = {"private": error.private, "run": clean(error.about or call.run, 100)}
    answer = clean(str(error), 400)
    who = "a caller who was not let in" if call.who == "nobody" else call.who
    logger.log(level, "%s called %s from %s, answered with %s", who, refusal.method, call.origin, answer, extra=extra)
