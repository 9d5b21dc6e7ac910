"""The outcome of a run in one sentence, with its reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedelmy_node.domain.step_traits import traits_of
from fedelmy_node.domain.text import duration_text, percent


def headline(history: Mapping[str, Any]) -> str:
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
        return "No site has reported anything about this run."
    if state in ("pending", "prepared"):
        pending = ", ".join(site["name"] for site in sites if site["state"] == "pending")
        cause = f"approval at {pending}" if pending else "the operator to start it"
        return f"The run has not started: it is waiting for {cause}."
    trained = sum(has_trained(site) for site in sites)
    skipped = f"; skipped: {_skipped(history)}" if _skipped(history) else ""
    return f"The run is in progress: {trained} of {len(sites)} sites have trained{skipped}."


def has_trained(site: Mapping[str, Any]) -> bool:
    return any(trains(step) and step["state"] == "done" for step in site["steps"])


def trains(step: Mapping[str, Any]) -> bool:
    """Whether a step, or one that was left out, trains; files of older software do not say."""
    return bool(step.get("trains", traits_of(step["step"]).trains))


def _done(history: Mapping[str, Any]) -> str:
    number, skipped = len(history["contributors"]), _skipped(history)
    by = f"{number} site{'s' if number != 1 else ''}"
    if skipped:
        by = f"{number} of {len(history['sites'])} sites (skipped: {skipped})"
    took = f" in {duration_text(history['seconds'], exact=True)}" if history["seconds"] else ""
    accuracy = "its accuracy was not measured or not disclosed"
    if history["accuracy"] is not None:
        share = percent(history["accuracy"])
        accuracy = f"it is correct on {share} of {history['samples']} test samples"
    return f"Done{took}: the result was trained by {by}; {accuracy}."


def _skipped(history: Mapping[str, Any]) -> str:
    out = [left["site"] for left in history["left_out"] if trains(left)]
    return ", ".join(dict.fromkeys(out))


def reasons(history: Mapping[str, Any]) -> list[str]:
    """Skipped and silent sites, contradictions, missing counts and clock differences."""
    sites, lines = history["sites"], []
    for left in history["left_out"]:
        lost = "Its training is not in the result"
        what = lost if trains(left) else "It did not get the result"
        code = f" ({left['code']})" if left["code"] else ""
        by = f", according to {left['by']}" if left["by"] else ""
        lines.append(
            f"{left['site']} was skipped ({left['step']}). {what}: {left['reason']}{code}{by}."
        )
    for site in sites:
        if silence := site["silence"]:
            cause = f"{silence['code']}: {silence['message']}"
            lines.append(f"{site['name']} did not answer when this was written ({cause}).")
    if history["results_differ"]:
        split = "The sites ended with DIFFERENT results: the network was split."
        lines.append(f"{split} This is the one at {', '.join(history['holders'])}.")
    lines += (f"Contradiction: {text}." for text in history["contradictions"])
    measured = set(history["measured_at"])
    kept = [s["name"] for s in sites if s["evaluation"] and s["name"] not in measured]
    if history["state"] == "done" and kept:
        why = "their counts were not disclosed, or belong to another result"
        lines.append(f"The accuracy does not include {', '.join(kept)}: {why}.")
    for site in sites:
        if site["clock_corrected"]:
            offset = site["clock_offset_seconds"]
            side = "ahead" if offset > 0 else "behind"
            apart = f"{duration_text(abs(offset), exact=True)} {side}"
            lines.append(f"The clock of {site['name']} is {apart}; its times are corrected here.")
    return lines
