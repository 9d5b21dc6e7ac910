"""What a site is doing or waiting for, and how much training is left.

Each text comes in several lengths, longest first; a screen shows the longest that fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Final

from fedelmy_launcher.view.glyphs import NO_MARKS, Marks
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_launcher.view.site_progress import UNASKED, Handover, SiteProgress
from fedelmy_node.domain.events import RunState, StepState
from fedelmy_node.domain.names import StepId, site_of
from fedelmy_node.domain.step_traits import DELIVER, MERGE
from fedelmy_node.domain.text import bytes_text, duration_text

_BEFORE_START: Final[Mapping[str, list[str]]] = {
    "asking": ["asked to take part", "asked"],
    RunState.PENDING: [
        "waiting for its administrator's approval",
        "waiting for its administrator",
        "needs approval",
    ],
    RunState.PREPARED: [
        "waiting for the operator to start the run",
        "waiting for the operator",
        "ready to start",
    ],
}


def doing_texts(progress: RunProgress, site: SiteProgress, marks: Marks, now: float) -> list[str]:
    """One line about a site, in several lengths."""
    if site.silent or site.gone or site.skipped:
        return _absent(site)
    if site.state != RunState.RUNNING:
        return _BEFORE_START.get(site.state, [site.state])
    sending = _sending(site, marks, now)
    if site.doing and sending:
        return [f"{site.doing}, {sending[0]}", f"{site.doing}, {sending[-1]}", sending[-1]]
    if site.doing == "queued":
        return ["waiting for its device, which is busy", "waiting for its device"]
    return sending or (_computing(site, now) if site.doing else _waiting(progress, site, now))


def doing_sentence(progress: RunProgress, site: SiteProgress, now: float) -> str:
    """The longest text, without bars, for views that draw their own."""
    return " ".join(doing_texts(progress, site, NO_MARKS, now)[0].split())


def _absent(site: SiteProgress) -> list[str]:
    if site.state == UNASKED:
        return ["has its plan as a file; cannot be called", "cannot be called"]
    answer = "no answer" if site.silent or site.gone else ""
    if site.state == "unknown":
        answer = "does not know the run"
    if site.skipped:
        return [f"skipped, {answer}", "skipped"] if answer else ["skipped"]
    return [answer]


def _computing(site: SiteProgress, now: float) -> list[str]:
    left = site.seconds_left(now)
    if left is None:
        return [site.doing]
    text = f"{duration_text(left)} left"
    return [f"{site.doing}, about {text}", f"{site.doing}, {text}", site.doing]


def _sending(site: SiteProgress, marks: Marks, now: float) -> list[str]:
    """The site's hand-overs: a single one in detail, several as a sum."""
    under_way = [handover for handover in site.handovers.values() if not handover.retry]
    failed = [handover for handover in site.handovers.values() if handover.retry]
    if len(site.handovers) <= 1 or not under_way:
        return _one_handover(site, (under_way + failed)[0], marks, now) if site.handovers else []
    also = f", {len(failed)} failed" if failed else ""
    if len(under_way) == 1:
        return [f"{text}{also}" for text in _one_handover(site, under_way[0], marks, now)]
    total, moved = sum(h.total for h in under_way), sum(h.moved for h in under_way)
    part = moved / total if total else 0.0
    to, percent = f"{len(under_way)} sites", f"{100 * part:.0f}%"
    texts = [
        f"sending to {to} {marks.bar(part, 10)} {percent}{also}",
        f"to {to} {marks.bar(part, 6)} {percent}{also}",
        f"to {to} {percent}{also}",
    ]
    speed = sum(handover.speed or 0.0 for handover in under_way)
    if not speed:
        return texts
    rate, left = f"{bytes_text(int(speed))}/s", f"{duration_text((total - moved) / speed)} left"
    return [
        f"sending to {to} {marks.bar(part, 10)} {percent}, {rate}, {left}{also}",
        f"sending to {to} {marks.bar(part, 6)} {percent}, {rate}, {left}{also}",
        f"to {to} {marks.bar(part, 4)} {percent} {_brief(rate)}{also}",
        *texts,
    ]


def _one_handover(site: SiteProgress, handover: Handover, marks: Marks, now: float) -> list[str]:
    to = handover.peer
    if handover.retry:
        wait = duration_text(max(0.0, handover.retry_at - site.clock_ahead_seconds - now))
        if to in site.unreachable:
            return [f"cannot reach {to}, retrying in {wait}", f"cannot reach {to}"]
        return [
            f"hand-over to {to} failed, retrying in {wait}",
            f"retrying {to} in {wait}",
            f"retrying {to}",
        ]
    share, percent = handover.share, f"{100 * handover.share:.0f}%"
    speed, left = handover.speed, handover.seconds_left
    if speed is None or left is None:
        return [
            f"sending to {to} {marks.bar(share, 10)} {percent}",
            f"to {to} {marks.bar(share, 6)} {percent}",
        ]
    rate, rest = f"{bytes_text(int(speed))}/s", duration_text(left)
    return [
        f"sending to {to} {marks.bar(share, 10)} {percent}, {rate}, {rest} left",
        f"to {to} {marks.bar(share, 8)} {percent} {rate} {rest}",
        f"to {to} {marks.bar(share, 4)} {percent} {_brief(rate)} {rest}",
        f"to {to} {marks.bar(share, 4)} {percent} {rest}",
        f"to {to} {percent} {rest}",
    ]


def _brief(rate: str) -> str:
    """20 MB/s for 20.3 MB/s; 2.3 MB/s stays."""
    amount, _, unit = rate.partition(" ")
    return f"{amount.partition('.')[0] if len(amount) > 3 else amount} {unit}"


def _waiting(progress: RunProgress, site: SiteProgress, now: float) -> list[str]:
    step = progress.next_step(site.site)
    if step is None:
        # It stays responsible for its output until the receivers have passed it on.
        return ["done here; other sites are still running", "done here"]
    needs = progress.needs_of(step)
    if not needs:
        own = ["waiting for another step of its own", "waiting"]
        return own if step.needs else ["about to start", "starting"]
    others = list(dict.fromkeys(site_of(need) for need in needs))
    names = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    if step.kind == DELIVER:
        return [
            f"waiting for the result from {names}",
            "waiting for the result",
            "waiting for result",
        ]
    if len(step.needs) > 1:
        inputs = "models" if step.kind == MERGE else "inputs"
        here = f"has {len(step.needs) - len(needs)} of {len(step.needs)} {inputs}"
        return [f"{here}, waiting for {names}", f"{here}, waiting", here]
    if len(others) > 1 or others[0] not in progress.sites:
        many = f"waiting for {len(others)} sites" if len(others) > 1 else "waiting"
        return [f"waiting for {names}", many]
    reasons = _reasons(progress, progress.sites[others[0]], site, now)
    return [*(f"waiting for {names}{why}" for why in reasons), f"waiting for {names}", "waiting"]


def _reasons(
    progress: RunProgress, other: SiteProgress, site: SiteProgress, now: float
) -> Iterator[str]:
    """Why the other site's output has not arrived yet, to follow that site's name."""
    if other.site in site.unreachable:
        yield " (unreachable)"
    elif other.silent or other.gone:
        yield " (no answer)"
    elif other.is_final or other.state == RunState.PENDING:
        yield f" ({other.state})"
    elif handovers := other.handovers_to(site.site):
        if handovers[0].retry:
            yield " (its hand-over failed)"
        else:
            yield f" (sending, {100 * handovers[0].share:.0f}%)"
            yield f" ({100 * handovers[0].share:.0f}%)"
    elif other.doing:
        left = other.seconds_left(now)
        if left is None:
            yield f" ({other.doing})"
        else:
            yield f" ({other.doing}, about {duration_text(left)})"
            yield f" (about {duration_text(left)})"
    elif (step := progress.next_step(other.site)) is not None:
        needs = list(dict.fromkeys(site_of(need) for need in progress.needs_of(step)))
        if len(needs) == 1:
            yield f", which is itself waiting for {needs[0]}"
            yield f", itself waiting for {needs[0]}"
        yield ", itself waiting"


@dataclass(frozen=True, slots=True)
class Forecast:
    """How much training is left."""

    seconds: float
    guessed: int
    """Steps that train and have not started; their duration is the mean of the known ones."""

    def sentence(self) -> str:
        about = f"about {duration_text(self.seconds)} of training left"
        return f"{about}, if the other sites are as fast" if self.guessed else about


def training_left(progress: RunProgress, now: float) -> Forecast | None:
    """The longest path through the remaining steps that train; None until a duration is known.

    Other operations count as zero: a merge takes moments, and nothing is known of the rest.
    """
    over = (StepState.DONE, StepState.SKIPPED)
    states = {step.id: progress.state_of(step.id) for step in progress.steps}
    trains = {step.id for step in progress.steps if progress.traits(step.id).trains}
    ahead = [s for s in progress.steps if s.kind != DELIVER and states[s.id] not in over]
    train = {step.id: step for step in ahead if step.id in trains}
    known = [progress.seconds_of(step) for step in trains]
    taken = [seconds for seconds in known if seconds is not None]
    left: dict[StepId, float] = {}
    for step in train.values():
        site = progress.sites[step.site]
        seconds = site.seconds_left(now) if states[step.id] == StepState.RUNNING else None
        if site.silent or site.gone:
            return None
        if seconds is not None:
            left[step.id] = seconds
            begun = progress.begun_at(step.id)
            if begun is not None and site.ends_at is not None:
                taken.append(max(0.0, site.ends_at - begun))
        elif states[step.id] in (StepState.RUNNING, StepState.FAILED):
            return None  # no estimate yet, or never
    if not train or not taken:
        return None
    usual = mean(taken)
    ends: dict[StepId, float] = {}
    for step in ahead:  # inputs before outputs
        before = max((ends[need] for need in step.needs if need in ends), default=0.0)
        ends[step.id] = before + (left.get(step.id, usual) if step.id in train else 0.0)
    return Forecast(max(ends.values()), len(train) - len(left))
