"""Filter what leaves this site towards an operator, according to `disclose` under [consent].

A site that restricts anything sends only keys that are classified here, and rounds metrics: a
precise ratio reveals the counts behind it. The administrator, on the Unix socket, sees everything.
Durations cannot be hidden.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from fedelmy_node.config.consent_table import Consent, Disclosure
from fedelmy_node.domain.errors import (
    CATALOGUE,
    DataError,
    InternalError,
    TrainingError,
    error_from_code,
)
from fedelmy_node.domain.events import Event
from fedelmy_node.domain.reports import Finding, RunReport
from fedelmy_node.store.event_bus import EventStream

logger = logging.getLogger(__name__)

_SAMPLES: Final = frozenset[Disclosure](("sample-counts",))
_CLASSES: Final = frozenset[Disclosure](("class-counts",))
_METRICS: Final = frozenset[Disclosure](("metrics",))
_FEATURES: Final = frozenset[Disclosure](("features",))
_NOTHING: Final = frozenset[Disclosure]()

_ALWAYS: Final = (
    "state code message result seconds eta_seconds phase member members epoch epochs fits edge peer"
    " bytes total sha256 carries wait_seconds policy patience_seconds steps torch cpu_capability"
    " device parameters bundle_bytes state_bytes free_bytes needed_bytes memory_bytes expires version contracts"
    " contributors share skew_seconds round_trip_seconds bytes_per_second packages frozen_parameters new_tensors"
)
# Trial runs: the time per batch reveals the number of batches, and memory use the sample size.
_BY_SAMPLES: Final = (
    "train validation test samples batch left_out seconds_per_batch batches peak_bytes"
)
_BY_METRICS: Final = (
    "loss accuracy d1 d2 balanced_accuracy auc validation_accuracy member_accuracies"
    " received_accuracy pool_distances gamma gcv"
)
KEYS: Final[Mapping[str, frozenset[Disclosure]]] = {
    **dict.fromkeys(_ALWAYS.split(), _NOTHING),
    **dict.fromkeys(_BY_SAMPLES.split(), _SAMPLES),
    **dict.fromkeys(("class_counts", "missing_classes", "smallest_class", "sums_sha256"), _CLASSES),
    **dict.fromkeys(_BY_METRICS.split(), _METRICS),
    "correct": _SAMPLES | _METRICS,
    **dict.fromkeys(("classes", "received_classes", "validated_classes"), _CLASSES | _METRICS),
    "embedding": _FEATURES,
}
"""The disclosures that each key of an event, result or report requires."""
_DIGITS: Final = 2
_REVEALING: Final = (DataError, TrainingError, InternalError)
"""Errors whose messages may mention samples, classes or paths."""
_WITHHELD: Final = "details withheld; see the site's own log"


class Disclosed:
    """Answers to an operator, reduced to what this site discloses."""

    def __init__(self, consent: Consent) -> None:
        self._usual = consent.discloses_usual
        self._disclose = frozenset(consent.disclose)

    def data(self, data: Mapping[str, Any]) -> dict[str, Any]:
        shown = {key: self._value(key, value) for key, value in data.items() if self._may(key)}
        if "message" in shown:
            shown["message"] = self._message(str(data.get("code", "")), shown["message"])
        return shown

    def event(self, event: Event) -> Event:
        return replace(event, data=self.data(event.data))

    def report(self, report: RunReport) -> RunReport:
        steps = tuple(replace(step, result=self.data(step.result)) for step in report.steps)
        message = self._message(report.code, report.message)
        return replace(report, steps=steps, message=message, prepared=self.data(report.prepared))

    def finding(self, finding: Finding) -> Finding:
        """Drop private details; keep the message only if all facts in it may be disclosed."""
        if self._usual:
            return finding.without_private()
        facts = self.data(finding.facts)
        message = self._message(finding.code, finding.message)
        if len(facts) < len(finding.facts):
            message = _WITHHELD
        shown = replace(finding.without_private(), message=message, facts=facts)
        if message != _WITHHELD:
            return shown
        if finding.verdict == "warning":
            # Its mere presence would reveal the sample count to repeated requests with
            # different batch sizes.
            return replace(shown, verdict="ok", code="", fix="")
        entry = CATALOGUE.get(finding.code)
        return replace(shown, fix=entry.advice if entry else finding.fix)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Replace revealing errors: a refusal is an answer, too."""
        try:
            yield
        except _REVEALING as error:
            if self._usual:
                raise
            # The operator gets only the code.
            logger.warning("plan refused: %s", error, extra={"run": error.about})
            advice = CATALOGUE[error.code].advice
            raise error_from_code(error.code, _WITHHELD, advice) from error

    def _may(self, key: str) -> bool:
        """A site that restricts anything also withholds unclassified keys."""
        return KEYS.get(key, _NOTHING) <= self._disclose and (self._usual or key in KEYS)

    def _value(self, key: str, value: Any) -> Any:
        if key == "result":
            return self.data(value)
        return value if self._usual or "metrics" not in KEYS[key] else _rounded(value)

    def _message(self, code: str, message: str) -> str:
        entry = CATALOGUE.get(code)
        reveals = code and (entry is None or issubclass(entry.kind, _REVEALING))
        return _WITHHELD if message and reveals and not self._usual else message


class DisclosedEvents:
    """A stream of events, reduced to what this site discloses."""

    def __init__(self, stream: EventStream, disclosed: Disclosed) -> None:
        self._stream = stream
        self._disclosed = disclosed

    def __iter__(self) -> Iterator[Event]:
        return map(self._disclosed.event, self._stream)

    def close(self) -> None:
        self._stream.close()


def _rounded(value: Any) -> Any:
    """Round a metric, a list of metrics, or metrics by class."""
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
