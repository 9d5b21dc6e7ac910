"""Events as sentences: the node's log and the launcher's plain output say the same in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.texts import clean

if TYPE_CHECKING:
    from fedelmy_node.domain.reports import Absent
    from fedelmy_node.domain.transfer import Skip

__all__ = ["narrate", "absence_text", "skip_text", "percent", "bytes_text", "duration_text"]


def narrate(event: Event) -> str | None:
    """One line for an event that a reader of a log wants; epochs and bytes under way are left to tables."""
    data: Mapping[str, Any] = event.data
    text = None
    match event.kind:
        case EventKind.RUN:
            reason = ": ".join(part for part in (data.get("code"), data.get("message")) if part)
            text = f"run {data['state']}" + (f" ({reason})" if reason else "")
            if data["state"] == RunState.PENDING:
                text += f": waits for this site's administrator; fedelmy-node runs show {event.run}"
        case EventKind.STEP:
            text = _step(event)
        case EventKind.RESUMED:
            who = f"pool member {data['member']}/{data['members']}" if data["member"] else "warm-up"
            batch = f", batch {data['batch']}" if "batch" in data else ""
            text = f"goes on from a checkpoint: {who}, epoch {data['epoch']}{batch}"
        case EventKind.MEMBER:
            accuracy = f", validation {percent(data['accuracy'])}" if data.get("accuracy") is not None else ""
            text = f"pool member {data['member']}/{data['members']} done, epoch {data['epoch']} kept{accuracy}"
        case EventKind.SENT:
            text = f"sent {bytes_text(data['bytes'])} to {data['peer']} in {data['seconds']:.2f} s"
        case EventKind.RECEIVED:
            text = f"received {bytes_text(data['bytes'])} from {data['peer']}"
        case EventKind.RETRY:
            text = f"hand-over to {data['peer']} failed ({data['message']}), next try in {data['wait_seconds']} s"
        case EventKind.UNREACHABLE:
            text = f"cannot reach {data['peer']} ({data['message']}); {_then(data['policy'], data['patience_seconds'])}"
        case EventKind.REACHABLE:
            text = f"{data['peer']} answers again"
        case EventKind.AROUND:
            to = f", hands over to {data['peer']}" if data.get("peer") else ""
            text = f"goes on without {clean(', '.join(data['steps']), 400)}{to} ({data['message']})"
        case EventKind.WARNING:
            text = f"warning {data['code']}: {data['message']}"
        case _:
            pass
    return text


def absence_text(absent: Absent) -> str:
    """Whom a site waits for in vain, why, and what comes of it."""
    then = _then(absent.on_unreachable, absent.patience_seconds)
    if absent.on_unreachable == "skip" and absent.seconds >= absent.patience_seconds:
        then = f"patience ended after {absent.patience_seconds:g} s, so it goes on without it where it can"
    return f"cannot reach {absent.site} for {absent.seconds:.0f} s ({absent.code}: {absent.message}): {then}"


def skip_text(skip: Skip) -> str:
    """A step that was left out, by whom and why."""
    return f"{skip.step} left out by {skip.by}: {skip.message} ({skip.code})"


def _then(policy: str, patience_seconds: float) -> str:
    deed = {"skip": "goes on without it", "abort": "aborts the run"}.get(policy)
    return f"{deed} after {patience_seconds:g} s" if deed else "waits for it"


def _step(event: Event) -> str | None:
    state, result = event.data["state"], event.data.get("result", {})
    if state == StepState.DONE and "accuracy" in result:
        of = f" of {result['samples']} samples" if "samples" in result else ""
        return f"{event.step} done: accuracy {percent(result['accuracy'])}{of}"
    if state in (StepState.RUNNING, StepState.FAILED, StepState.SKIPPED):
        return f"{event.step} {state}" + (f": {event.data['message']}" if event.data.get("message") else "")
    return None


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}%"


def bytes_text(size: int) -> str:
    """1.5 MB: decimal, as disks and networks are sold."""
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def duration_text(seconds: float, *, exact: bool = False) -> str:
    """45 s, 3 min 20 s, 2 h 5 min, 12 days; `exact`: of what was measured, also 210 ms and 12.3 s."""
    if exact and seconds < 1:
        return f"{1000 * max(0.0, seconds):.0f} ms"
    if exact and seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    if whole < 6000:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min" if whole < 360_000 else f"{whole // 86_400} days"
