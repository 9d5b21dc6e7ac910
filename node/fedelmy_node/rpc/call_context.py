"""The call that a thread answers, for logs and audit records: caller, origin and subject."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.text import clean

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Call:
    """The call that a thread answers; run and edge as far as they are known."""

    who: str = ""
    """site/NAME, operator/NAME or administrator; nobody, if it was not admitted."""
    origin: str = ""
    """The network address; `local` on the Unix socket."""
    run: str = ""
    edge: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A call that was answered with an error. Texts may come from the caller unchanged."""

    call: Call
    method: str
    error: FedelmyError


_local = threading.local()


def current_call() -> Call:
    """Return the call that this thread answers; an empty one if there is none."""
    found: Call = getattr(_local, "call", None) or Call()
    return found


@contextmanager
def answering(call: Call) -> Iterator[Call]:
    """Make `call` the current call of this thread."""
    _local.call = call
    try:
        yield call
    finally:
        _local.call = None


def set_call_subject(run: str, edge: str = "") -> None:
    """Record which run and edge the current call is about."""
    found = current_call()
    found.run, found.edge = run, edge


def log_refusal(refusal: Refusal) -> None:
    call, error = refusal.call, refusal.error
    # Launchers ask whether a run is known before they create it: not worth a log line.
    level = logging.DEBUG if error.code == "E-RUN-UNKNOWN" else logging.INFO
    extra = {"private": error.private, "run": clean(error.about or call.run, 100)}
    who = "an unauthenticated caller" if call.who == "nobody" else call.who
    details = who, refusal.method, call.origin, clean(str(error), 400)
    logger.log(level, "%s called %s from %s, answered with %s", *details, extra=extra)
