"""Bad schedules, made short and told as lists of events."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import fields

from fedelmy_node.run import run_events as ev
from fedelmy_node.store.changes import EdgeChange
from tests.chaos.chance import Choices
from tests.chaos.core.entries import Entry, InboxChanged, PlanStored, Restored
from tests.chaos.core.network import START
from tests.chaos.core.schedules import Outcome, try_schedule
from tests.chaos.core.site import Hook


def family(problems: Sequence[str]) -> str:
    """What kind of failure it is, whoever meets it; empty: none."""
    return re.sub(r"\b[a-e]\b", "x", problems[0])[:100] if problems else ""


def shortened(outcome: Outcome, seconds: float = 30.0, hook: Hook | None = None) -> Outcome:
    """Return the shortest schedule found in this time that fails in the same way."""
    wanted, end = family(outcome.problems), time.monotonic() + seconds
    best, made = outcome, list(outcome.choices.made)
    size = max(1, len(made) // 2)
    while size and time.monotonic() < end:
        at = 0
        while at < len(made) and time.monotonic() < end:
            part = made[at : at + size]
            for attempt in (
                made[:at] + made[at + size :],
                made[:at] + [0] * len(part) + made[at + size :],
            ):
                tried = try_schedule(outcome.kind, Choices(given=attempt), hook)
                if attempt != made and family(tried.problems) == wanted:
                    best, made = tried, attempt
                    break
            else:
                at += size
        size //= 2
    return best


def told(outcome: Outcome) -> list[str]:
    """A schedule as a list of events, with what people and accidents did in between."""
    policies = " ".join(f"{name}={p}/{s}s" for name, (p, s) in outcome.shape.policies)
    lines = [
        f"{outcome.kind}: {outcome.shape.topology}, {policies}, deliver {outcome.shape.deliver}"
    ]
    notes = list(outcome.federation.notes)
    for at, entry in enumerate(outcome.federation.log):
        while notes and notes[0][0] <= at:
            lines.append(f"        -- {notes.pop(0)[1]}")
        lines.append(line_of(entry))
    lines += [f"        -- {note}" for _, note in notes]
    choices = ",".join(map(str, outcome.choices.made)).rstrip("0,")
    again = f"python -m tests.chaos.core --kind '{outcome.kind}' --choices '{choices}'"
    return [*lines, "", again, "", *outcome.problems]


def line_of(entry: Entry) -> str:
    """One entry in one line; `repr(entry)` has everything."""
    event = entry.event
    match event:
        case InboxChanged():
            rows = (each for each in event.changes if isinstance(each, EdgeChange))
            about = [event.cause, *(f"{row.edge} {row.record.state}" for row in rows)]
        case ev.NeighbourSaid(site, state):
            given = {field.name: getattr(state, field.name) for field in fields(state)}
            edges = [f"{name} {' '.join(v)}" for name, v in given.items() if isinstance(v, tuple)]
            about = [site, state.state, *(text for text in edges if not text.endswith(" "))]
        case PlanStored() | ev.StepProgressed():
            about = [
                str(getattr(event, name))
                for name in ("state", "step", "kind")
                if hasattr(event, name)
            ]
        case Restored():
            about = []
        case _:
            named = ("step", "edge", "site", "error", "by", "is_open", "reason")
            found = [(name, getattr(event, name, None)) for name in named]
            about = [f"{name} {value}" for name, value in found if value is not None]
    text = f"{type(event).__name__}({', '.join(about)})"
    return f"{entry.now.monotonic - START:7.1f} {entry.site} {text}"
