"""Events as sentences, shared by the node's log and the launcher's plain output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.step_traits import BUILT_IN, operation_of
from fedelmy_node.domain.text import bytes_text, clean, percent

if TYPE_CHECKING:
    from fedelmy_node.domain.artifact import Skip
    from fedelmy_node.domain.reports import Absent


def narrate(event: Event) -> str | None:
    """Describe an event in one line; None for epochs and transfer progress."""
    data: Mapping[str, Any] = event.data
    text = None
    match event.kind:
        case EventKind.RUN:
            reason = ": ".join(part for part in (data.get("code"), data.get("message")) if part)
            text = f"run {data['state']}" + (f" ({reason})" if reason else "")
            if data["state"] == RunState.PENDING:
                text += f": approval required, see `fedelmy-node runs show {event.run}`"
        case EventKind.STEP:
            text = _step(event)
        case EventKind.RESUMED:
            who = f"pool member {data['member']}/{data['members']}" if data["member"] else "warm-up"
            batch = f", batch {data['batch']}" if "batch" in data else ""
            text = f"resumed from a checkpoint: {who}, epoch {data['epoch']}{batch}"
        case EventKind.MEMBER:
            score = data.get("accuracy")
            accuracy = "" if score is None else f", validation {percent(score)}"
            done = f"pool member {data['member']}/{data['members']} done"
            text = f"{done}, epoch {data['epoch']} kept{accuracy}"
        case EventKind.SENT:
            text = f"sent {bytes_text(data['bytes'])} to {data['peer']} in {data['seconds']:.2f} s"
        case EventKind.RECEIVED:
            text = f"received {bytes_text(data['bytes'])} from {data['peer']}"
        case EventKind.RETRY:
            retry = f"retrying in {data['wait_seconds']} s"
            text = f"transfer to {data['peer']} failed ({data['message']}), {retry}"
        case EventKind.UNREACHABLE:
            then = _policy_text(data["policy"], data["patience_seconds"])
            text = f"{data['peer']} unreachable ({data['message']}); {then}"
        case EventKind.REACHABLE:
            text = f"{data['peer']} is reachable again"
        case EventKind.AROUND:
            to = f", sending to {data['peer']}" if data.get("peer") else ""
            text = f"skipped {clean(', '.join(data['steps']), 400)}{to} ({data['message']})"
        case EventKind.WARNING:
            text = f"warning {data['code']}: {data['message']}"
        case _:
            pass
    return text


def absence_text(absent: Absent) -> str:
    """Describe an unreachable neighbour: since when, why, and what happens next."""
    then = _policy_text(absent.on_unreachable, absent.patience_seconds)
    if absent.on_unreachable == "skip" and absent.seconds >= absent.patience_seconds:
        then = f"patience of {absent.patience_seconds:g} s exceeded, skipping it where possible"
    cause = f"{absent.code}: {absent.message}"
    return f"{absent.site} unreachable for {absent.seconds:.0f} s ({cause}): {then}"


def skip_text(skip: Skip) -> str:
    """Describe a skipped step: which, by whom, and why."""
    return f"{skip.step} skipped by {skip.by}: {skip.message} ({skip.code})"


def _policy_text(policy: str, patience_seconds: float) -> str:
    action = {"skip": "will skip it", "abort": "will abort the run"}.get(policy)
    return f"{action} after {patience_seconds:g} s" if action else "waiting for it"


def _step(event: Event) -> str | None:
    state, result = event.data["state"], event.data.get("result", {})
    if state == StepState.DONE and "accuracy" in result:
        on = f" on {result['samples']} samples" if "samples" in result else ""
        return f"{event.step} done: accuracy {percent(result['accuracy'])}{on}"
    if state == StepState.DONE and event.step and operation_of(event.step) not in BUILT_IN:
        return f"{event.step} done"
    if state in (StepState.RUNNING, StepState.FAILED, StepState.SKIPPED):
        message = event.data.get("message")
        return f"{event.step} {state}" + (f": {message}" if message else "")
    return None
