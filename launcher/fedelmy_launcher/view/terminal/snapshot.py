"""The current state of running steps, and alerts that no event carries (certificates, disks)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fedelmy_launcher.control.contributors import Outline
from fedelmy_launcher.control.event_streams import Streams
from fedelmy_launcher.control.sites import Sites, expiry_warnings
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_launcher.view.site_progress import SiteProgress
from fedelmy_node.domain.events import EdgeState, Event, RunState, StepState
from fedelmy_node.domain.names import SiteName, StepId, edge_ends
from fedelmy_node.domain.reports import NodeDescription, RunReport
from fedelmy_node.domain.step_traits import traits_of
from fedelmy_node.domain.text import bytes_text, duration_text, percent
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.store.disk_budget import CHECKPOINT_MODELS

_PARAMETER_BYTES: Final = 4
_AHEAD: Final = (EdgeState.WAITING, EdgeState.MOVING)
_TO_DO: Final = (StepState.WAITING, StepState.QUEUED, StepState.RUNNING)


def alerts_of(
    identity: Identity | None,
    nodes: Iterable[NodeDescription],
    reports: Mapping[SiteName, RunReport],
) -> list[str]:
    """Warnings, each with its code."""
    known = list(nodes)
    texts = [f"E-IDENTITY-EXPIRED: {text}" for text in expiry_warnings(identity, known)]
    texts += [f"{warning} (seen by {node.site})" for node in known for warning in node.warnings]
    for node in known:
        need = needed_bytes(reports[node.site]) if node.site in reports else 0
        if node.free_bytes < need:
            free = f"{node.site} has {bytes_text(node.free_bytes)} of disk left"
            texts.append(
                f"E-STORE-DISK: {free}; the run still needs about {bytes_text(need)} there"
            )
    return texts


def needed_bytes(report: RunReport) -> int:
    """A lower bound of what a run will still write at a site; reports lack the pool's size."""
    if RunState(report.state).is_final:
        return 0
    own = report.operations
    arriving = sum(
        edge.receiver == report.site
        and edge.state in _AHEAD
        and traits_of(edge_ends(edge.edge)[0] or StepId(""), own).leaves == "weights"
        for edge in report.edges
    )
    writing = sum(
        step.state in _TO_DO and traits_of(step.step, own).trains for step in report.steps
    )
    checkpoints = _PARAMETER_BYTES * report.parameters * (CHECKPOINT_MODELS if writing else 0)
    return report.bundle_bytes * (arriving + writing) + checkpoints


_LAST_EVENTS: Final = 100
"""Per site; enough to include its latest epoch and transfer."""
_PATIENCE_SECONDS: Final = 3.0
"""A slower site is shown without its last events."""


def glance(sites: Sites, outline: Outline, reports: Mapping[SiteName, RunReport]) -> RunProgress:
    """The run with the latest events of its busy sites, without waiting for new ones."""
    progress = RunProgress(outline, began_before=True)
    progress.take(reports)
    awaited = {
        site: report.last_event
        for site, report in reports.items()
        if site in progress.sites and any(step.state == StepState.RUNNING for step in report.steps)
    }
    ends = time.monotonic() + _PATIENCE_SECONDS
    with Streams(sites, outline.run) as streams:
        for site, last in awaited.items():
            streams.listen(site, max(0, last - _LAST_EVENTS))
        while awaited:
            news = streams.next(ends - time.monotonic())
            if news is None:
                break
            if isinstance(news, Event):
                progress.add(news)
                if news.seq < awaited.get(news.site, 0):
                    continue
            awaited.pop(news.site, None)
    return progress


def pace_of(site: SiteProgress) -> dict[str, Any]:
    """The progress of a site's running step as JSON; undisclosed values are omitted."""
    known = {
        "doing": site.doing,
        "member": site.member,
        "members": site.members,
        "epoch": site.epoch,
        "epochs": site.epochs,
        "loss": site.loss,
        "validation_accuracy": site.validation,
        "seconds_left": site.seconds_left(time.time()),
    }
    return {key: value for key, value in known.items() if value is not None}


def pace_text(site: SiteProgress) -> str:
    """The same as text; empty before the first epoch."""
    parts = [site.loop] if site.loop else []
    if site.is_fitting:
        who = f"pool member {site.member}/{site.members}" if site.member else "warm-up"
        parts = [who, f"epoch {site.epoch}/{site.epochs}"]
        if site.validation is not None:
            parts.append(f"validation {percent(site.validation)}")
    left = site.seconds_left(time.time())
    if left is not None:
        parts.append(f"about {duration_text(left)} left")
    return ", ".join(parts)
