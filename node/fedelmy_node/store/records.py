"""The rows of the journal as the rest of the node sees them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from fedelmy_node import CONTRACT
from fedelmy_node.bundles.manifest import TensorInfo
from fedelmy_node.config.decode import decode
from fedelmy_node.domain.events import RunState, StepState
from fedelmy_node.domain.names import EdgeId, StepId
from fedelmy_node.domain.plan import Slice, Step
from fedelmy_node.errors import ConfigError, PeerError, RunError

__all__ = ["EdgeState", "Prepared", "StepRecord", "EdgeRecord", "RunRecord", "read_slice"]


class EdgeState(StrEnum):
    """Where a transfer is, seen from this end."""

    WAITING = "waiting"
    """Nothing has moved."""
    MOVING = "moving"
    """Blocks are on their way."""
    DONE = "done"
    """Verified, on the receiver's disk, journaled and acknowledged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A plan that this site accepted, with what its preparation found out."""

    payload: bytes
    """The slice as the operator signed it."""
    slice: Slice
    """The same, decoded."""
    signature: bytes
    certificate: bytes
    """The operator's, PEM."""
    operator: str
    """The operator's name, from the certificate."""
    manifest: tuple[TensorInfo, ...]
    """The tensors that a bundle of this run must have."""
    report: Mapping[str, Any]
    """Counts of samples and classes, versions, size of the model."""

    @classmethod
    def from_row(cls, row: sqlite3.Row) -> Self:
        return cls(
            payload=row["prepared"],
            slice=read_slice(row["prepared"]),
            signature=row["signature"],
            certificate=row["certificate"],
            operator=row["operator"],
            manifest=tuple(decode(TensorInfo, entry) for entry in json.loads(row["manifest"])),
            report=json.loads(row["report"]),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """Where a step is and what it came to."""

    state: StepState
    sha256: str
    size: int
    result: Mapping[str, Any]
    started_at: float
    ended_at: float

    @classmethod
    def from_row(cls, row: sqlite3.Row) -> Self:
        return cls(
            state=StepState(row["state"]),
            sha256=row["sha256"],
            size=row["bytes"],
            result=json.loads(row["result"]),
            started_at=row["started_at"],
            ended_at=row["ended_at"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeRecord:
    """Where a transfer is."""

    state: EdgeState
    sha256: str
    size: int

    @classmethod
    def from_row(cls, row: sqlite3.Row) -> Self:
        return cls(state=EdgeState(row["state"]), sha256=row["sha256"], size=row["bytes"])


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """One run as the journal has it."""

    state: RunState
    prepared: Prepared
    code: str
    """Of the error, if it failed here."""
    message: str
    changed_at: float
    steps: Mapping[StepId, StepRecord]
    edges: Mapping[EdgeId, EdgeRecord]

    @property
    def slice(self) -> Slice:
        return self.prepared.slice

    @property
    def has_received(self) -> bool:
        """Whether any bundle came in: then the run has begun somewhere."""
        return any(self.edges[edge.id].state == EdgeState.DONE for edge in self.slice.edges_in)

    @property
    def has_begun(self) -> bool:
        """Whether anything was done here that a new preparation would undo."""
        return self.has_received or any(step.started_at > 0 for step in self.steps.values())

    def has_inputs(self, step: Step) -> bool:
        """Whether everything that `step` needs is at this site."""
        for need in step.needs:
            edge = self.slice.edge_into(step, need)
            if edge is None:
                if self.steps[need].state != StepState.DONE:
                    return False
            elif self.edges[edge.id].state != EdgeState.DONE:
                return False
        return True


def read_slice(payload: bytes) -> Slice:
    """The slice in a signed payload; a plan of another contract is refused by name, before its content is looked at."""
    try:
        raw = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise RunError("E-RUN-PLAN", "the plan is not JSON") from error
    if not isinstance(raw, dict):
        raise RunError("E-RUN-PLAN", "the plan is not a JSON object")
    if raw.get("contract") != CONTRACT:
        raise PeerError(
            "E-PEER-CONTRACT", f"the plan speaks contract {raw.get('contract')!r}, this node speaks {CONTRACT!r}"
        )
    try:
        return decode(Slice, raw)
    except (ConfigError, PeerError) as error:
        raise RunError("E-RUN-PLAN", f"the plan is not usable: {error.message}") from error
