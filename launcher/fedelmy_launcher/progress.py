"""What a run looks like: events of all sites folded into one line per site, and at the end into a result.

Run, simulation and demo feed the same events into the same fold; screens and JSON are made from it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedelmy_node.domain.events import Event, EventKind, RunState, StepState
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.plan import Plan, StepKind

__all__ = ["SiteProgress", "RunProgress"]


@dataclass(kw_only=True, slots=True)
class SiteProgress:
    """What is known of a run at one site."""

    site: SiteName
    state: str = "asking"
    """The run's state there; asking, until it is known."""
    silent: bool = False
    """It does not answer at the moment."""
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
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    """The evaluate step's counts and metrics."""
    sha256: str = ""
    """Of the result as this site has it."""
    size: int = 0
    """Of its file, in bytes."""
    problem: str = ""
    """The last warning or error, with its code."""

    @property
    def accuracy(self) -> float | None:
        value = self.evaluation.get("accuracy")
        return value if isinstance(value, float) else None

    def summary(self) -> dict[str, Any]:
        """For the result's list of sites."""
        known = {
            "name": self.site, "state": self.state, "accuracy": self.accuracy,
            "samples": self.evaluation.get("samples", 0), "correct": self.evaluation.get("correct", 0),
            "balanced_accuracy": self.evaluation.get("balanced_accuracy"), "auc": self.evaluation.get("auc"),
            "bundle_sha256": self.sha256, "bytes_sent": self.sent, "bytes_delivered": self.delivered,
            "training_seconds": round(self.seconds, 3),
        }  # fmt: skip
        return known | ({"problem": self.problem} if self.problem else {})


class RunProgress:
    """The fold over a run's events; `sites` are in the order in which they train."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._kinds = {step.id: step.kind for step in plan.steps}
        self._begun: dict[str, float] = {}
        self._clock = time.monotonic()
        self._ended: float | None = None
        self.sites = {site: SiteProgress(site=site) for site in dict.fromkeys(step.site for step in plan.steps)}

    @property
    def seconds(self) -> float:
        """Since the run was asked for; the clock stands still once the run is done at every site."""
        return (self._ended or time.monotonic()) - self._clock

    def add(self, event: Event) -> None:
        """Take an event in; events of one site must come in order, those of different sites need not."""
        site = self.sites[event.site]
        site.silent = False
        data = event.data
        match event.kind:
            case EventKind.RUN:
                site.state = data["state"]
                self._ended = time.monotonic() if self.is_done else None
                site.doing = "" if RunState(site.state).is_final else site.doing or "waiting"
                if data.get("code"):
                    site.problem = f"{data['code']}: {data.get('message', '')}"
            case EventKind.STEP:
                self._step(site, event)
            case EventKind.EPOCH:
                site.doing = "warm-up" if data["phase"] == "warm-up" else "training"
                site.member, site.members = data["member"], data["members"]
                site.epoch, site.epochs = data["epoch"], data["epochs"]
                site.loss, site.validation = data["loss"], data["accuracy"]
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
            case _:
                pass

    def _step(self, site: SiteProgress, event: Event) -> None:
        assert event.step is not None
        kind, state = self._kinds[event.step], event.data["state"]
        if state == StepState.RUNNING:
            self._begun[event.step] = event.time
            site.doing = "evaluating" if kind == StepKind.EVALUATE else "training"
            site.problem = ""
        elif state == StepState.QUEUED:
            site.doing = "queued"
        elif state == StepState.FAILED:
            site.problem = f"{event.data.get('code', '')}: {event.data.get('message', '')}"
        elif state == StepState.DONE:
            site.doing = "waiting"
            if kind == StepKind.EVALUATE:
                site.evaluation = event.data["result"]
            elif kind == StepKind.DELIVER:
                site.sha256, site.size = event.data["sha256"], event.data["bytes"]
            else:
                site.seconds += event.time - self._begun.get(event.step, event.time)

    @property
    def is_done(self) -> bool:
        return all(site.state == RunState.DONE for site in self.sites.values())

    def result(self) -> dict[str, Any]:
        """The last line of `run`, `simulate` and `demo`: correct over samples, not a mean of means."""
        sites: Sequence[SiteProgress] = list(self.sites.values())
        correct = sum(site.evaluation.get("correct", 0) for site in sites)
        samples = sum(site.evaluation.get("samples", 0) for site in sites)
        holder = next((site for site in sites if site.sha256), None)
        return {
            "run": self.plan.run,
            "federation": self.plan.federation,
            "state": "done" if self.is_done else "unfinished",
            "accuracy": correct / samples if samples else None,
            "samples": samples,
            "bundle_sha256": holder.sha256 if holder else None,
            "bundle_bytes": holder.size if holder else 0,
            "bytes_sent": sum(site.sent for site in sites),
            "bytes_delivered": sum(site.delivered for site in sites),
            "seconds": round(self.seconds, 3),
            "sites": [site.summary() for site in sites],
        }
