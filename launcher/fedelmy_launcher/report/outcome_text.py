"""The outcome of a run in one sentence, and its reasons in a few more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedelmy_node.domain.narration import duration_text, percent

__all__ = ["headline", "reasons"]


def headline(history: Mapping[str, Any]) -> str:
    """What a reader wants to know first."""
    state, sites = history["state"], history["sites"]
    if state == "done":
        return _done(history)
    trouble = next((site for site in sites if site["state"] == state), None)
    where = f" at {trouble['name']}" if trouble else ""
    why = f": {trouble['problem']}" if trouble and trouble["problem"] else ""
    if state == "cancelled":
        return f"The run was cancelled{why}."
    if state in ("failed", "aborted", "expired"):
        verb = {"failed": "failed", "aborted": "was aborted", "expired": "has expired"}[state]
        return f"The run {verb}{where}{why}"
    if state == "unknown":
        return "No site has told anything about this run."
    if state in ("pending", "prepared"):
        waits = [site["name"] for site in sites if site["state"] == "pending"]
        return f"The run has not begun: it waits for {', '.join(waits) or 'the operator to start it'}."
    trained = sum(any(s["kind"] == "train" and s["state"] == "done" for s in site["steps"]) for site in sites)
    left = f"; without {_left_out(history)}" if _left_out(history) else ""
    return f"The run goes on: {trained} of {len(sites)} sites have trained{left}."


def _done(history: Mapping[str, Any]) -> str:
    number = len(history["contributors"])
    out = _left_out(history)
    work = f"the work of {number} site{'s' if number != 1 else ''}"
    if out:
        work = f"the work of {number} of {len(history['sites'])} sites, without {out}"
    took = f" in {duration_text(history['seconds'], exact=True)}" if history["seconds"] else ""
    if history["accuracy"] is None:
        return f"Done{took}: the result holds {work}; its accuracy was not measured or not disclosed."
    return (
        f"Done{took}: the result holds {work}, and is right on {percent(history['accuracy'])}"
        f" of {history['samples']} test samples."
    )


def _left_out(history: Mapping[str, Any]) -> str:
    trains = [left["site"] for left in history["left_out"] if left["step"].startswith("train")]
    return ", ".join(dict.fromkeys(trains))


def reasons(history: Mapping[str, Any]) -> list[str]:
    """Who was left out and why, who did not answer, what does not fit together, whose counts are missing."""
    lines = []
    for left in history["left_out"]:
        what = "Its work is not in the result" if left["step"].startswith("train") else "It did not get the result"
        code = f" ({left['code']})" if left["code"] else ""
        by = f", says {left['by']}" if left["by"] else ""
        lines.append(f"{left['site']} was left out ({left['step']}). {what}: {left['reason']}{code}{by}.")
    for site in history["sites"]:
        if site["silence"]:
            silence = site["silence"]
            lines.append(
                f"{site['name']} did not answer when this was written ({silence['code']}: {silence['message']})."
            )
    if history["results_differ"]:
        holders = ", ".join(history["holders"])
        lines.append(f"The sites ended with DIFFERENT results: the network was split. This is the one at {holders}.")
    lines += (f"A contradiction: {text}." for text in history["contradictions"])
    measured = set(history["measured_at"])
    kept = [site["name"] for site in history["sites"] if site["evaluation"] and site["name"] not in measured]
    if history["state"] == "done" and kept:
        lines.append(f"The accuracy does not count {', '.join(kept)}: counts were not disclosed, or of another result.")
    skewed = [site for site in history["sites"] if site["clock_corrected"]]
    for site in skewed:
        offset = site["clock_offset_seconds"]
        way = "ahead" if offset > 0 else "behind"
        apart = duration_text(abs(offset), exact=True)
        lines.append(f"The clock of {site['name']} is {apart} {way}; its times are corrected here.")
    return lines
