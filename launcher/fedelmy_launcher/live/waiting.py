"""What a site does now, or whom it waits for and why; and how much training is still to come.

Everything is read from the fold over the events, and said in several lengths, the longest first: a screen takes the one
that fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import mean
from typing import Final

from fedelmy_launcher.live.marks import NO_MARKS, Marks
from fedelmy_launcher.progress import RunProgress
from fedelmy_launcher.site_progress import UNASKED, Handover, SiteProgress
from fedelmy_node.domain.events import RunState, StepState
from fedelmy_node.domain.names import StepId, site_of
from fedelmy_node.domain.narration import bytes_text, duration_text
from fedelmy_node.domain.plan import StepKind

__all__ = ["doing_texts", "doing_sentence", "training_left", "Forecast"]

_MAKES: Final = (StepKind.TRAIN, StepKind.MERGE)
"""Steps that make a model."""
_AHEAD_TEXTS: Final[Mapping[str, list[str]]] = {
    "asking": ["asked to take part", "asked"],
    RunState.PENDING: ["waits for its administrator to agree", "waits for its administrator", "waits for approval"],
    RunState.PREPARED: ["waits for the operator to start", "waits for the operator", "waits for operator"],
}


def doing_texts(progress: RunProgress, site: SiteProgress, marks: Marks, now: float) -> list[str]:
    """What one line says of a site, in several lengths."""
    if site.silent or site.gone or site.skipped:
        return _absent(site)
    if site.state != RunState.RUNNING:
        return _AHEAD_TEXTS.get(site.state, [site.state])
    moving = _moving(site, marks, now)
    if site.doing and moving:
        return [f"{site.doing}, {moving[0]}", f"{site.doing}, {moving[-1]}", moving[-1]]
    if site.doing == "queued":
        return ["waits for its device, which is busy", "waits for its device"]
    return moving or (_computing(site, now) if site.doing else _waiting(progress, site, now))


def doing_sentence(progress: RunProgress, site: SiteProgress, now: float) -> str:
    """The longest of them, for whoever draws bars of its own."""
    return " ".join(doing_texts(progress, site, NO_MARKS, now)[0].split())


def _absent(site: SiteProgress) -> list[str]:
    if site.state == UNASKED:
        return ["has its plan as a file, and cannot be asked", "cannot be asked"]
    answer = "does not know the run" if site.state == "unknown" else "no answer" if site.silent or site.gone else ""
    if site.skipped:
        return [f"skipped, {answer}", "skipped"] if answer else ["skipped"]
    return [answer]


def _computing(site: SiteProgress, now: float) -> list[str]:
    left = site.seconds_left(now)
    if left is None:
        return [site.doing]
    return [f"{site.doing}, about {duration_text(left)} left", f"{site.doing}, {duration_text(left)} left", site.doing]


def _moving(site: SiteProgress, marks: Marks, now: float) -> list[str]:
    """The hand-overs of a site: one by one if there is one, else together."""
    under_way = [handover for handover in site.handovers.values() if not handover.retry]
    failed = [handover for handover in site.handovers.values() if handover.retry]
    if len(site.handovers) <= 1 or not under_way:
        return _handing(site, (under_way + failed)[0], marks, now) if site.handovers else []
    also = f", {len(failed)} failed" if failed else ""
    if len(under_way) == 1:
        return [f"{text}{also}" for text in _handing(site, under_way[0], marks, now)]
    total, moved = sum(handover.total for handover in under_way), sum(handover.moved for handover in under_way)
    part = moved / total if total else 0.0
    to, percent = f"{len(under_way)} sites", f"{100 * part:.0f}%"
    speed = sum(handover.speed or 0.0 for handover in under_way)
    rate = f"{bytes_text(int(speed))}/s" if speed else ""
    left = f"{duration_text((total - moved) / speed)} left" if speed else ""
    told = [
        f"sends to {to} {marks.bar(part, 10)} {percent}, {rate}, {left}{also}",
        f"sends to {to} {marks.bar(part, 6)} {percent}, {rate}, {left}{also}",
        f"to {to} {marks.bar(part, 4)} {percent} {_brief(rate)}{also}",
    ]
    return [
        *(told if speed else ()),
        f"sends to {to} {marks.bar(part, 10)} {percent}{also}",
        f"to {to} {marks.bar(part, 6)} {percent}{also}",
        f"to {to} {percent}{also}",
    ]


def _handing(site: SiteProgress, handover: Handover, marks: Marks, now: float) -> list[str]:
    to = handover.peer
    if handover.retry:
        again = duration_text(max(0.0, handover.retry_at - site.clock_ahead_seconds - now))
        if to in site.unreachable:
            return [f"cannot reach {to}, tries again in {again}", f"cannot reach {to}"]
        return [f"hand-over to {to} failed, again in {again}", f"tries {to} again in {again}", f"tries {to} again"]
    percent = f"{100 * handover.share:.0f}%"
    speed, left = handover.speed, handover.seconds_left
    if speed is None or left is None:
        return [
            f"sends to {to} {marks.bar(handover.share, 10)} {percent}",
            f"to {to} {marks.bar(handover.share, 6)} {percent}",
        ]
    rate, rest = f"{bytes_text(int(speed))}/s", duration_text(left)
    return [
        f"sends to {to} {marks.bar(handover.share, 10)} {percent}, {rate}, {rest} left",
        f"to {to} {marks.bar(handover.share, 8)} {percent} {rate} {rest}",
        f"to {to} {marks.bar(handover.share, 4)} {percent} {_brief(rate)} {rest}",
        f"to {to} {marks.bar(handover.share, 4)} {percent} {rest}",
        f"to {to} {percent} {rest}",
    ]


def _brief(rate: str) -> str:
    """20 MB/s for 20.3 MB/s; 2.3 MB/s stays."""
    amount, _, unit = rate.partition(" ")
    return f"{amount.partition('.')[0] if len(amount) > 3 else amount} {unit}"


def _waiting(progress: RunProgress, site: SiteProgress, now: float) -> list[str]:
    step = progress.next_step(site.site)
    if step is None:
        # It answers for its output until that has gone all its way.
        return ["done here, the others are not yet", "done here"]
    needs = progress.needs_of(step)
    if not needs:
        return ["waits for another step of its own", "waits"] if step.needs else ["is about to begin", "begins"]
    others = list(dict.fromkeys(site_of(need) for need in needs))
    names = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    if step.kind == StepKind.DELIVER:
        return [f"waits for the result, from {names}", "waits for the result", "waits for result"]
    if step.kind == StepKind.MERGE and len(step.needs) > 1:
        here = f"has {len(step.needs) - len(needs)} of {len(step.needs)} models"
        return [f"{here}, waits for {names}", f"{here}, waits", here]
    texts = [f"waits for {names}", f"waits for {len(others)} sites" if len(others) > 1 else "waits"]
    if len(others) > 1 or others[0] not in progress.sites:
        return texts
    return [*(f"waits for {names} ({why})" for why in _reasons(progress, progress.sites[others[0]], site, now)), *texts]


def _reasons(progress: RunProgress, other: SiteProgress, site: SiteProgress, now: float) -> Iterator[str]:
    """Why a site does not have the other's output yet."""
    if other.site in site.unreachable:
        yield "out of reach"
    elif other.silent or other.gone:
        yield "no answer"
    elif other.is_final or other.state == RunState.PENDING:
        yield other.state
    elif handovers := other.handovers_to(site.site):
        handover = handovers[0]
        if handover.retry:
            yield "its hand-over failed"
        else:
            yield f"sending, {100 * handover.share:.0f}%"
            yield f"{100 * handover.share:.0f}%"
    elif other.doing in ("warm-up", "training", "loading", "queued", "merging"):
        left = other.seconds_left(now)
        if left is not None:
            yield f"{other.doing}, about {duration_text(left)}"
            yield f"about {duration_text(left)}"
        else:
            yield other.doing
    elif progress.next_step(other.site) is not None and not other.doing:
        yield "waits, too"


class Forecast:
    """How much training is still to come, if it can be told."""

    def __init__(self, seconds: float, guessed: int) -> None:
        self.seconds = seconds
        self.guessed = guessed
        """Train steps that have not begun: they are taken to last as long as the others did."""

    def sentence(self) -> str:
        about = f"about {duration_text(self.seconds)} of training left"
        return f"{about}, if the other sites are as fast" if self.guessed else about


def training_left(progress: RunProgress, now: float) -> Forecast | None:
    """Along the longest way through what is still to be trained; None until a train step has told how long it takes.

    A merge takes moments; what it needs it waits for.
    """
    ahead = [
        step
        for step in progress.steps
        if step.kind in _MAKES and progress.state_of(step.id) not in (StepState.DONE, StepState.SKIPPED)
    ]
    train = {step.id: step for step in ahead if step.kind == StepKind.TRAIN}
    known = [progress.seconds_of(step.id) for step in progress.steps if step.kind == StepKind.TRAIN]
    taken = [seconds for seconds in known if seconds is not None]
    left: dict[StepId, float] = {}
    for step in train.values():
        site = progress.sites[step.site]
        seconds = site.seconds_left(now) if progress.state_of(step.id) == StepState.RUNNING else None
        if site.silent or site.gone:
            return None
        if seconds is not None:
            left[step.id] = seconds
            begun = progress.begun_at(step.id)
            if begun is not None and site.ends_at is not None:
                taken.append(max(0.0, site.ends_at - begun))
        elif progress.state_of(step.id) in (StepState.RUNNING, StepState.FAILED):
            return None  # it has told nothing yet, or never will
    if not train or not taken:
        return None
    usual = mean(taken)
    ends: dict[StepId, float] = {}
    for step in ahead:  # inputs before outputs
        before = max((ends[need] for need in step.needs if need in ends), default=0.0)
        ends[step.id] = before + (left.get(step.id, usual) if step.id in train else 0.0)
    return Forecast(max(ends.values()), len(train) - len(left))
