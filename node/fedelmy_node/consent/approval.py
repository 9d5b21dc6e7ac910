"""Which decisions about a run are possible in its current state: start, approve, refuse, prune."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fedelmy_node.domain.errors import ConsentError, RunError
from fedelmy_node.domain.events import AHEAD, RunState
from fedelmy_node.domain.names import RunId
from fedelmy_node.domain.text import clean
from fedelmy_node.store.records import RunRecord

_ADMINISTRATOR_HINTS: Final[Mapping[str, str]] = {
    "E-CONSENT-REFUSED": "Nothing to do. If the refusal was a mistake, ask the operator for a new"
    " run.",
    "E-RUN-CANCELLED": "Nothing to do: the operator has ended the run.",
    "E-RUN-ABORTED": "Nothing to do: another site was unreachable for too long.",
    "E-RUN-EXPIRED": "Nothing to do. To take part, ask the operator to run it again.",
}
"""Replace the catalogue's hints, which address the operator."""


def check_start(record: RunRecord) -> None:
    """Allow an operator to start a prepared run or to retry a failed one."""
    _refuse_if_ended(record)
    if record.state == RunState.PENDING:
        message = f"run {record.slice.run} waits for the administrator of {record.slice.site}"
        raise ConsentError("E-CONSENT-APPROVAL", message)


def check_approval(record: RunRecord, plan_sha256: str) -> None:
    """Allow approval only of the plan that was shown, not of one that replaced it since."""
    _refuse_if_ended(record, _ADMINISTRATOR_HINTS)
    if record.prepared.sha256 != plan_sha256:
        message = f"the plan of run {record.slice.run} has changed since it was shown"
        raise RunError("E-RUN-CONFLICT", message, hint="Read the new plan, then decide.")


def check_refusal(record: RunRecord) -> None:
    """Allow refusal only before the run has begun: later, other sites depend on this one."""
    _refuse_if_ended(record, _ADMINISTRATOR_HINTS)
    if record.state not in AHEAD or record.has_begun:
        message = f"run {record.slice.run} has begun and can no longer be refused"
        hint = "Ask the operator to cancel it; to stop it only here, stop the node."
        raise RunError("E-RUN-CONFLICT", message, hint=hint)


def check_pruning(run: RunId, state: RunState) -> None:
    if not state.is_final:
        hint = "Ask the operator to cancel it first."
        raise RunError("E-RUN-UNFINISHED", f"run {run} is {state}", hint=hint)


def refusal_text(record: RunRecord, reason: str) -> str:
    """The message to the operator."""
    text = f"the administrator of {record.slice.site} refused the run"
    return clean(f"{text}: {reason}" if reason else text, 500)


def expiry_of(state: RunState) -> tuple[str, str]:
    """Return code and message for a run that stayed in this state for too long."""
    if state == RunState.PENDING:
        return "E-CONSENT-APPROVAL", "its administrator neither approved nor refused it"
    return "E-RUN-EXPIRED", "it was never started"


def _refuse_if_ended(record: RunRecord, hints: Mapping[str, str] | None = None) -> None:
    run, hints = record.slice.run, hints or {}
    if record.code == "E-CONSENT-REFUSED":
        raise ConsentError(record.code, record.message, hint=hints.get(record.code))
    lacked = "approved" if record.is_unapproved else "started"
    ended = {
        RunState.CANCELLED: ("E-RUN-CANCELLED", "was cancelled"),
        RunState.ABORTED: ("E-RUN-ABORTED", f"was aborted: {record.message}"),
        RunState.EXPIRED: ("E-RUN-EXPIRED", f"was prepared, but not {lacked} in time"),
    }
    if record.state in ended:
        code, what = ended[record.state]
        raise RunError(code, f"run {run} {what}", hint=hints.get(code))
