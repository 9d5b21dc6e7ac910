"""What people may do with a run as it stands here: start, approve, refuse, prune; why one expired. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fedelmy_node.domain.events import AHEAD, RunState
from fedelmy_node.domain.names import RunId
from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import ConsentError, RunError
from fedelmy_node.store.records import RunRecord

__all__ = ["check_start", "check_approval", "check_refusal", "check_pruning", "refusal_text", "expiry_of"]


def check_start(record: RunRecord) -> None:
    """An operator may start what is prepared, or try again what failed; on what is under way nothing changes."""
    _refuse_if_ended(record)
    if record.state == RunState.PENDING:
        message = f"run {record.slice.run} waits for the administrator of {record.slice.site}"
        raise ConsentError("E-CONSENT-APPROVAL", message)


def check_approval(record: RunRecord, plan_sha256: str) -> None:
    """The administrator approves the plan that was shown, not one that took its place meanwhile."""
    _refuse_if_ended(record, _TO_ADMINISTRATOR)
    if record.prepared.sha256 != plan_sha256:
        message = f"run {record.slice.run} has another plan than was shown"
        raise RunError("E-RUN-CONFLICT", message, hint="Look at it again, then decide.")


def check_refusal(record: RunRecord) -> None:
    """Only what has not begun can be refused: others may wait for what this site has promised."""
    _refuse_if_ended(record, _TO_ADMINISTRATOR)
    if record.state not in AHEAD or record.has_begun:
        message = f"run {record.slice.run} has begun, so it cannot be refused any more"
        raise RunError("E-RUN-CONFLICT", message, hint="The operator can cancel it; stopping the node stops it here.")


def check_pruning(run: RunId, state: RunState) -> None:
    """Only what is over can be forgotten."""
    if not state.is_final:
        raise RunError("E-RUN-UNFINISHED", f"run {run} is {state}", hint="Have the operator cancel it first.")


def refusal_text(record: RunRecord, reason: str) -> str:
    """What the operator is told."""
    return clean(f"the administrator of {record.slice.site} refused the run" + (f": {reason}" if reason else ""), 500)


def expiry_of(state: RunState) -> tuple[str, str]:
    """Code and message of a run that waited in this state for too long."""
    if state == RunState.PENDING:
        return "E-CONSENT-APPROVAL", "its administrator neither approved nor refused it"
    return "E-RUN-EXPIRED", "it was never started"


_TO_ADMINISTRATOR: Final[Mapping[str, str]] = {
    "E-CONSENT-REFUSED": "Nothing more to do here. If the refusal was a mistake, ask the operator for a new run.",
    "E-RUN-CANCELLED": "Nothing more to do here: the operator has ended it.",
    "E-RUN-ABORTED": "Nothing more to do here: another site was out of reach for too long.",
    "E-RUN-EXPIRED": "Nothing more to do here; if you want to take part, ask the operator to run it again.",
}
"""Advice for the administrator, who decides; that of the catalogue is for the operator, who asks."""


def _refuse_if_ended(record: RunRecord, advice: Mapping[str, str] | None = None) -> None:
    """Nothing more can become of a run that has ended without being done."""
    run, hints = record.slice.run, advice or {}
    if record.code == "E-CONSENT-REFUSED":
        raise ConsentError("E-CONSENT-REFUSED", record.message, hint=hints.get("E-CONSENT-REFUSED"))
    if record.state == RunState.CANCELLED:
        raise RunError("E-RUN-CANCELLED", f"run {run} was cancelled", hint=hints.get("E-RUN-CANCELLED"))
    if record.state == RunState.ABORTED:
        message = f"run {run} was aborted: {record.message}"
        raise RunError("E-RUN-ABORTED", message, hint=hints.get("E-RUN-ABORTED"))
    if record.state == RunState.EXPIRED:
        lacked = "approved" if record.is_unapproved else "started"
        message = f"run {run} was prepared, but not {lacked} in time"
        raise RunError("E-RUN-EXPIRED", message, hint=hints.get("E-RUN-EXPIRED"))
