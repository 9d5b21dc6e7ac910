"""What no event of a run tells and its operator should know: certificates that expire, disks that will not do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fedelmy_launcher.control import expiry_warnings
from fedelmy_node.daemon.room import CHECKPOINT_MODELS
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.narration import bytes_text
from fedelmy_node.domain.plan import StepKind
from fedelmy_node.domain.reports import NodeDescription, RunReport
from fedelmy_node.identity.keystore import Identity

__all__ = ["alerts_of", "needed_bytes"]

_PARAMETER_BYTES: Final = 4
_AHEAD: Final = (EdgeState.WAITING, EdgeState.MOVING)
_TO_DO: Final = (StepState.WAITING, StepState.QUEUED, StepState.RUNNING)


def alerts_of(
    identity: Identity | None, nodes: Iterable[NodeDescription], reports: Mapping[SiteName, RunReport]
) -> list[str]:
    """Each with its code."""
    known = list(nodes)
    texts = [f"E-IDENTITY-EXPIRED: {text}" for text in expiry_warnings(identity, known)]
    texts += [f"{warning} (seen by {node.site})" for node in known for warning in node.warnings]
    for node in known:
        need = needed_bytes(reports[node.site]) if node.site in reports else 0
        if node.free_bytes < need:
            texts.append(
                f"E-STORE-DISK: {node.site} has {bytes_text(node.free_bytes)} of disk left,"
                f" the run still needs about {bytes_text(need)} there"
            )
    return texts


def needed_bytes(report: RunReport) -> int:
    """What a run will still write at a site, at least: the pool's own size is not in a report."""
    if RunState(report.state).is_final:
        return 0
    arriving = sum(edge.receiver == report.site and edge.state in _AHEAD for edge in report.edges)
    to_do = [step for step in report.steps if step.state in _TO_DO]
    writing = sum(step.kind == StepKind.TRAIN for step in to_do)
    models = CHECKPOINT_MODELS if writing else 0
    return report.bundle_bytes * (arriving + writing) + _PARAMETER_BYTES * report.parameters * models
