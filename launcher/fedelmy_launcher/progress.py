"""What a run looks like: events of all sites folded into one line per site, and at the end into a result.

Run, attachment, simulation and demo feed the same events into the same fold; screens and JSON are made from it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedelmy_launcher.outcome import Outcome, Outline, OutlineStep, Result, outcome_of
from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.narration import narrate
from fedelmy_node.domain.plan import StepKind
from fedelmy_node.domain.reports import RunReport
from fedelmy_node.domain.texts import clean
from fedelmy_node.domain.transfer import Origin, Skip

__all__ = ["SiteProgress", "RunProgress"]


@dataclass(kw_only=True, slots=True)
class SiteProgress:
    """What is known of a run at one site."""

    site: SiteName
    state: str = "asking"
    """The run's state there; asking, until it is known; unknown, if the site has forgotten the run."""
    silent: bool = False
    """It does not answer at the moment."""
    gone: bool = False
    """The run is over without any more word from it."""
    skipped: bool = False
    """The others went on without what it was to train."""
    doing: str = ""
    """What it does now, for people: waiting, warm-up, training, sending, evaluating, ..."""
    member: int = 0
    members: int = 0
    epoch: int = 0
    epochs: int = 0
    loss: float | None = None
    validation: float | None = None
    """Accuracy on the site's validation data after the last epoch."""
    sent: int = 0
    """Bytes handed over on training edges."""
    delivered: int = 0
    """Bytes handed over on the way of the result."""
    moving: str = ""
    """A hand-over that is under way, as `42%`."""
    seconds: float = 0.0
    """Spent in train steps."""
    evaluation: Mapping[str, Any] | None = None
    """The evaluate step's counts and metrics, as far as the site discloses them; None: there was none yet."""
    sha256: str = ""
    """Of the result as this site has it."""
    size: int = 0
    """Of its file, in bytes."""
    problem: str = ""
    """The last warning or error, with its code."""
    unreachable: dict[str, str] = field(default_factory=dict)
    """The neighbours that it cannot reach, each with a sentence."""

    @property
    def accuracy(self) -> float | None:
        value = (self.evaluation or {}).get("accuracy")
        return value if isinstance(value, float) else None

    @property
    def counts(self) -> tuple[int, int] | None:
        """Correct and all test samples, if the site tells both."""
        correct, samples = ((self.evaluation or {}).get(key) for key in ("correct", "samples"))
        return (correct, samples) if isinstance(correct, int) and isinstance(samples, int) else None

    @property
    def shown_state(self) -> str:
        """For people: what they want to know first."""
        return "skipped" if self.skipped else "no answer" if self.gone and self.state != "unknown" else self.state

    def summary(self) -> dict[str, Any]:
        """For the result's list of sites."""
        measured = {"accuracy": None, "samples": 0, "correct": 0, "balanced_accuracy": None, "auc": None}
        if self.evaluation is not None:  # what a site does not disclose is left out
            measured = {key: self.evaluation[key] for key in measured if key in self.evaluation}
        known = {
            "name": self.site, "state": self.shown_state, **measured, "bundle_sha256": self.sha256,
            "bytes_sent": self.sent, "bytes_delivered": self.delivered,
            "training_seconds": round(self.seconds, 3),
        }  # fmt: skip
        return known | ({"problem": self.problem} if self.problem else {})


class RunProgress:
    """The fold over a run's events; `sites` are in the order in which they train."""

    def __init__(self, outline: Outline, *, began_before: bool = False) -> None:
        """`began_before`: the run was found, so only its events know when it began."""
        self.run = outline.run
        self.federation = outline.federation
        self.steps: Sequence[OutlineStep] = ()
        self.sites: dict[SiteName, SiteProgress] = {}
        self._states: dict[StepId, StepState] = {}
        self._around: dict[StepId, Skip] = {}
        self._origins: dict[SiteName, Origin] = {}
        self._begun: dict[str, float] = {}
        self._asked: float | None = None if began_before else time.monotonic()
        self._ended: float | None = None
        self._first, self._last = float("inf"), 0.0
        self.extend(outline)

    def extend(self, outline: Outline) -> list[SiteName]:
        """More of the same run became known; the sites that are new."""
        known = self.sites
        self.steps = outline.steps
        self._kinds = {step.id: step.kind for step in outline.steps}
        names = dict.fromkeys([*(step.site for step in outline.steps), *known])
        self.sites = {site: known.get(site) or SiteProgress(site=site) for site in names}
        return [site for site in self.sites if site not in known]

    @property
    def seconds(self) -> float:
        """Since the run was asked for or, if it was found, since its first event; stands still once it is over."""
        if self._asked is not None:
            return (self._ended or time.monotonic()) - self._asked
        return max(0.0, (self._last if self.is_done else time.time()) - self._first) if self._last else 0.0

    def add(self, event: Event) -> None:
        """Take an event in; events of one site must come in order, those of different sites need not."""
        site = self.sites[event.site]
        site.silent = False
        data = event.data
        match event.kind:
            case EventKind.RUN:
                self._run(site, event)
            case EventKind.STEP:
                self._step(site, event)
            case EventKind.EPOCH:
                site.doing = "warm-up" if data["phase"] == "warm-up" else "training"
                site.member, site.members = data["member"], data["members"]
                site.epoch, site.epochs = data["epoch"], data["epochs"]
                site.loss, site.validation = data.get("loss"), data.get("accuracy")
            case EventKind.SENDING:
                site.doing, site.moving = "sending", f"{100 * data['bytes'] // max(1, data['total'])}%"
            case EventKind.SENT:
                site.moving = ""
                if data["carries"] == StepKind.DELIVER:
                    site.delivered += data["bytes"]
                else:
                    site.sent += data["bytes"]
                site.doing = "waiting" if site.doing in ("sending", "") else site.doing
            case EventKind.RETRY | EventKind.WARNING:
                site.problem = f"{data['code']}: {data['message']}"
            case EventKind.UNREACHABLE:
                site.unreachable[data["peer"]] = narrate(event) or ""
            case EventKind.REACHABLE:
                site.unreachable.pop(data["peer"], None)
            case EventKind.AROUND:
                self._go_around(event)
            case _:
                pass
        self._first, self._last = min(self._first, event.time), max(self._last, event.time)

    def take(self, reports: Mapping[SiteName, RunReport]) -> None:
        """What sites report of themselves: whose work they have, and what became of their steps."""
        for site, report in reports.items():
            self._origins[site] = report.origin
            self._states.update({step.step: step.state for step in report.steps})
        self._mark()

    def _run(self, site: SiteProgress, event: Event) -> None:
        data = event.data
        site.state = data["state"]
        if RunState(site.state).is_final:
            site.doing, site.moving = "", ""
            site.unreachable.clear()
        else:
            site.doing = site.doing or "waiting"
        self._ended = time.monotonic() if self.is_done else None
        if data.get("code"):
            site.problem = f"{data['code']}: {data.get('message', '')}"

    def _step(self, site: SiteProgress, event: Event) -> None:
        assert event.step is not None
        state = StepState(event.data["state"])
        named = event.step.partition(".")[0]
        kind = self._kinds.get(event.step) or (StepKind(named) if named in set(StepKind) else None)
        self._states[event.step] = state
        if state == StepState.RUNNING:
            self._begun[event.step] = event.time
            site.doing = "evaluating" if kind == StepKind.EVALUATE else "training"
            site.problem = ""
        elif state == StepState.QUEUED:
            site.doing = "queued"
        elif state == StepState.FAILED:
            site.problem = f"{event.data.get('code', '')}: {event.data.get('message', '')}"
        elif state == StepState.SKIPPED:
            self._mark()
        elif state == StepState.DONE:
            site.doing = "waiting"
            if kind == StepKind.EVALUATE:
                site.evaluation = event.data.get("result", {})
            elif kind == StepKind.DELIVER:
                site.sha256, site.size = event.data.get("sha256", ""), event.data.get("bytes", 0)
            elif kind == StepKind.TRAIN:
                site.seconds += event.time - self._begun.get(event.step, event.time)

    def _go_around(self, event: Event) -> None:
        for step in event.data["steps"]:
            code, message = clean(event.data["code"], 64), clean(event.data["message"], 400)
            skip = Skip(step=step, by=event.site, code=code, message=message)
            self._around.setdefault(StepId(step), skip)
        self._mark()

    def _mark(self) -> None:
        out = {left.step for left in self.outcome().left_out}
        for site in self.sites.values():
            site.skipped = any(
                step.id in out for step in self.steps if step.site == site.site and step.kind == StepKind.TRAIN
            )

    @property
    def step_states(self) -> Mapping[StepId, StepState]:
        """Of every step that was heard of."""
        return self._states

    @property
    def is_done(self) -> bool:
        return all(site.state == RunState.DONE or site.gone for site in self.sites.values())

    def is_over_without(self, site: SiteName, *, even_evaluation: bool = False) -> bool:
        """Whether nothing is expected of a silent site: its work is in the result or was skipped, as was its delivery.

        Whether a site that was handed the result has evaluated it, nobody else knows.
        """
        mine = [step for step in self.steps if step.site == site]
        skipped = {*self._around, *(skip.step for origin in self._origins.values() for skip in origin.skipped)}
        inside = {step for origin in self._origins.values() for step in origin.contributors}
        trained = all(step.id in skipped | inside for step in mine if step.kind == StepKind.TRAIN)
        undelivered = all(step.id in skipped for step in mine if step.kind == StepKind.DELIVER)
        return bool(mine) and trained and (undelivered or even_evaluation)

    def outcome(self) -> Outcome:
        """Whose work the result holds, and who was left out, as far as it is known."""
        results = {site.site: Result(site.sha256, site.size) for site in self.sites.values() if site.sha256}
        return outcome_of(self.steps, self._states, results, self._origins, self._around.values())

    def result(self) -> dict[str, Any]:
        """The last line of `run`, `simulate` and `demo`: correct over samples, not a mean of means."""
        sites: Sequence[SiteProgress] = list(self.sites.values())
        outcome = self.outcome()
        # Only what measures the bundle that is reported: sites may have ended with different ones.
        counted = {site.site: known for site in sites if site.site in outcome.holders and (known := site.counts)}
        correct, samples = sum(known[0] for known in counted.values()), sum(known[1] for known in counted.values())
        unheard = [site.site for site in sites if site.gone and site.state != "unknown"]
        return {
            "run": self.run,
            "federation": self.federation,
            "state": "done" if self.is_done else "unfinished",
            **outcome.encoded(),
            "subset": bool(outcome.left_out or unheard),
            "unheard": unheard,
            "accuracy": correct / samples if samples else None,
            "samples": samples,
            "measured_at": list(counted),
            "bundle_sha256": outcome.result.sha256 if outcome.result else None,
            "bundle_bytes": outcome.result.size if outcome.result else 0,
            "bytes_sent": sum(site.sent for site in sites),
            "bytes_delivered": sum(site.delivered for site in sites),
            "seconds": round(self.seconds, 3),
            "sites": [site.summary() for site in sites],
        }
