"""What leaves this site towards an operator: one function per kind of answer, at the one boundary where they are made.

`disclose` under [consent] says which numbers about the site's data may leave. A site that restricts anything tells
only keys that are classified here; and what it tells is rounded, because a precise ratio gives away the counts that it
was made of. The administrator, on the Unix socket, sees everything. How long things take cannot be hidden.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from fedelmy_node.config.consent import Consent, Disclosure
from fedelmy_node.domain.events import Event
from fedelmy_node.domain.findings import Finding
from fedelmy_node.domain.reports import RunReport
from fedelmy_node.errors import (
    CATALOGUE,
    DataError,
    FedelmyError,
    InternalError,
    TrainingError,
    error_from_code,
)
from fedelmy_node.store.streams import EventStream

__all__ = ["Disclosed", "DisclosedEvents", "KEYS"]

logger = logging.getLogger(__name__)

_SAMPLES: Final = frozenset[Disclosure](("sample-counts",))
_CLASSES: Final = frozenset[Disclosure](("class-counts",))
_METRICS: Final = frozenset[Disclosure](("metrics",))
_FEATURES: Final = frozenset[Disclosure](("features",))
_NOTHING: Final = frozenset[Disclosure]()

KEYS: Final[Mapping[str, frozenset[Disclosure]]] = {
    # progress and states, errors, traffic, versions: always told
    **dict.fromkeys(
        (
            "state", "code", "message", "result", "seconds", "eta_seconds", "phase", "member", "members", "epoch",
            "epochs", "fits", "edge", "peer", "bytes", "total", "sha256", "carries", "wait_seconds", "policy",
            "patience_seconds", "steps", "torch", "cpu_capability", "device", "parameters", "bundle_bytes",
            "free_bytes", "needed_bytes", "memory_bytes", "expires", "version", "contracts", "skew_seconds",
            "round_trip_seconds", "bytes_per_second", "packages",
        ),
        _NOTHING,
    ),
    **dict.fromkeys(("train", "validation", "test", "samples", "batch", "left_out"), _SAMPLES),
    # of a trial: how many batches an epoch has follows from how long one takes; memory holds the samples, too
    **dict.fromkeys(("seconds_per_batch", "batches", "peak_bytes"), _SAMPLES),
    **dict.fromkeys(("class_counts", "missing_classes"), _CLASSES),
    **dict.fromkeys(
        (
            "loss", "accuracy", "d1", "d2", "balanced_accuracy", "auc", "validation_accuracy", "member_accuracies",
            "received_accuracy", "pool_distances",
        ),
        _METRICS,
    ),
    "correct": _SAMPLES | _METRICS,
    "classes": _CLASSES | _METRICS,
    "embedding": _FEATURES,
}  # fmt: skip
"""What must be disclosed for a key of an event, a result or a report to be told; a key that is not here is not told."""
_DIGITS: Final = 2
_TELLING: Final = (DataError, TrainingError, InternalError)
"""Errors whose sentences may speak of samples, classes or paths."""
_UNTOLD: Final = "the site's own log says more; it does not disclose that"


class Disclosed:
    """The answers of a site that may disclose some things and not others."""

    def __init__(self, consent: Consent) -> None:
        self._usual = consent.discloses_usual
        self._told = frozenset(consent.disclose)

    def data(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Counts and metrics as an operator may see them."""
        told = {key: self._value(key, value) for key, value in data.items() if self._may(key)}
        if "message" in told and not self._usual:
            told["message"] = self._message(str(data.get("code", "")), told["message"])
        return told

    def event(self, event: Event) -> Event:
        return replace(event, data=self.data(event.data))

    def report(self, report: RunReport) -> RunReport:
        steps = tuple(replace(step, result=self.data(step.result)) for step in report.steps)
        message = report.message if self._usual else self._message(report.code, report.message)
        return replace(report, steps=steps, message=message, prepared=self.data(report.prepared))

    def finding(self, finding: Finding) -> Finding:
        """What is private never leaves; a sentence is made of its facts, so it is told if all of them are."""
        if self._usual:
            return finding.told()
        facts = self.data(finding.facts)
        message = self._message(finding.code, finding.message)
        if len(facts) < len(finding.facts):
            message = _UNTOLD
        told = replace(finding.told(), message=message, facts=facts)
        if message != _UNTOLD:
            return told
        if finding.verdict == "warning":
            # That there is one is an answer, too: asked with one batch size after another, it would count the samples.
            return replace(told, verdict="ok", code="", fix="")
        entry = CATALOGUE.get(finding.code)
        return replace(told, fix=entry.advice if entry else finding.fix)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """A refusal, too, is an answer."""
        try:
            yield
        except _TELLING as error:
            if self._usual:
                raise
            logger.warning("a plan was refused: %s", error, extra={"run": error.about})  # operators hear the code alone
            raise self._error(error) from error

    def _may(self, key: str) -> bool:
        """A site that keeps something back also keeps back what nobody has classified."""
        return KEYS.get(key, _NOTHING) <= self._told and (self._usual or key in KEYS)

    def _value(self, key: str, value: Any) -> Any:
        if key == "result":
            return self.data(value)
        return value if self._usual or "metrics" not in KEYS[key] else _rounded(value)

    def _message(self, code: str, message: str) -> str:
        entry = CATALOGUE.get(code)
        tells = code and (entry is None or issubclass(entry.kind, _TELLING))
        return _UNTOLD if message and tells else message

    def _error(self, error: FedelmyError) -> FedelmyError:
        return error_from_code(error.code, _UNTOLD, CATALOGUE[error.code].advice)


class DisclosedEvents:
    """A stream of events as an operator may see them."""

    def __init__(self, stream: EventStream, disclosed: Disclosed) -> None:
        self._stream = stream
        self._disclosed = disclosed

    def __iter__(self) -> Iterator[Event]:
        for event in self._stream:
            yield self._disclosed.event(event)

    def close(self) -> None:
        self._stream.close()


def _rounded(value: Any) -> Any:
    """A metric, a list of them, or a table of them by class."""
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
