"""The rows of the journal as the rest of the node sees them."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fedelmy_node.bundle.format import tensor_bytes
from fedelmy_node.config.decode import decode
from fedelmy_node.domain.artifact import BundleSpec, Origin, TensorInfo
from fedelmy_node.domain.errors import RunError, TransferError
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import EdgeId, StepId
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.plan_steps import Route
from fedelmy_node.domain.reports import RunSummary, Signed
from fedelmy_node.domain.step_traits import DELIVER, operation_of


def json_object(text: bytes) -> dict[str, Any]:
    """Return the JSON object in a text; raise ValueError or TypeError if it is not one."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    return value


def added_column(row: sqlite3.Row, column: str, default: Any) -> Any:
    """Return a column; journals of older versions, which are read before migration, may lack it."""
    return row[column] if column in row.keys() else default  # noqa: SIM118 - it iterates over values


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A plan that this site accepted, with the results of its preparation."""

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
    metadata: str = ""
    """The safetensors metadata that a bundle of this run must have; empty: it was not recorded."""
    specs: Mapping[str, BundleSpec] = field(default_factory=dict)
    """Specs of the operations whose bundles differ from `manifest`."""

    def spec_of(self, step: StepId) -> BundleSpec:
        """Return the spec of a step's bundle; the step may be at another site."""
        operation = operation_of(step)
        operation = self.slice.result if operation == DELIVER else operation
        known = self.specs.get(operation)
        return known or BundleSpec(manifest=self.manifest, metadata=self.metadata)

    @property
    def largest(self) -> tuple[TensorInfo, ...]:
        """The manifest of the largest bundle."""
        manifests = (self.manifest, *(spec.manifest for spec in self.specs.values()))
        return max(manifests, key=tensor_bytes)

    @property
    def sha256(self) -> str:
        """Digest of the plan; an approval refers to it."""
        return hashlib.sha256(self.payload).hexdigest()

    @classmethod
    def from_row(cls, row: sqlite3.Row, plan: Slice) -> Self:
        return cls(
            payload=row["prepared"],
            slice=plan,
            signature=row["signature"],
            certificate=row["certificate"],
            operator=row["operator"],
            manifest=tuple(decode(TensorInfo, entry) for entry in json.loads(row["manifest"])),
            report=json_object(row["report"]),
            metadata=row["metadata"],
            specs={
                name: decode(BundleSpec, entry)
                for name, entry in json_object(added_column(row, "specs", b"{}")).items()
            },
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
    state_sha256: str = ""
    """Digest of the state that it left for the next step here; empty: none."""
    state_size: int = 0

    @classmethod
    def from_row(cls, row: sqlite3.Row) -> Self:
        return cls(
            state=StepState(row["state"]),
            sha256=row["sha256"],
            size=row["bytes"],
            result=json_object(row["result"]),
            started_at=row["started_at"],
            ended_at=row["ended_at"],
            state_sha256=added_column(row, "state_sha256", ""),
            state_size=added_column(row, "state_bytes", 0),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeRecord:
    """The state of an edge or a shortcut."""

    state: EdgeState
    sha256: str
    size: int
    origin: Origin
    """Of a received bundle; of a shortcut: the steps that it skips, and why."""

    @classmethod
    def from_row(cls, row: sqlite3.Row) -> Self:
        return cls(
            state=EdgeState(row["state"]),
            sha256=row["sha256"],
            size=row["bytes"],
            origin=decode(Origin, json.loads(row["origin"])),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """One run in the journal."""

    state: RunState
    prepared: Prepared
    code: str
    """Error code, if the run failed here."""
    message: str
    cancel: Signed | None
    """The operator's signed cancel, to be passed on to neighbours."""
    changed_at: float
    steps: Mapping[StepId, StepRecord]
    edges: Mapping[EdgeId, EdgeRecord]
    """Edges and shortcuts."""
    nonce: bytes = b""
    """Random, new each time that this site accepts a plan; empty if older software accepted it."""

    @property
    def slice(self) -> Slice:
        return self.prepared.slice

    @property
    def summary(self) -> RunSummary:
        plan = self.slice
        return RunSummary(
            run=plan.run, state=self.state, federation=plan.federation, changed_at=self.changed_at
        )

    @property
    def is_unapproved(self) -> bool:
        """Whether the administrator has not approved the run: until then, nothing begins."""
        return self.state == RunState.PENDING or self.code == "E-CONSENT-APPROVAL"

    def check_asked(self, plan_id: str) -> None:
        """Refuse a question about another plan of the same name as one about a run that is not
        known here.

        Older software does not say which plan it asks about.
        """
        if plan_id not in ("", self.slice.plan_id):
            message = f"site {self.slice.site} has a different plan for run {self.slice.run}"
            raise RunError("E-RUN-UNKNOWN", message)

    def check_takes(self, plan_id: str) -> None:
        """Refuse what was begun for another plan of the same name, or before this site has agreed
        to this one.
        """
        if self.slice.plan_id != plan_id or self.is_unapproved:
            message = (
                f"run {self.slice.run} has a new plan since the transfer began; begin it again"
            )
            raise TransferError("E-TRANSFER-SEQUENCE", message)

    @property
    def has_received(self) -> bool:
        """Whether any bundle came in: then the run has begun somewhere."""
        return any(self.edges[edge.id].state == EdgeState.DONE for edge in self.slice.edges_in)

    @property
    def has_begun(self) -> bool:
        """Whether anything was done here that a new preparation would undo."""
        return self.has_received or any(step.started_at > 0 for step in self.steps.values())

    def route_used(self, step: StepId, need: StepId) -> Route | None:
        """The route on which a need from another site was met; None if it was not."""
        routes = self.slice.routes_to(step, need)
        return next((r for r in routes if self.edges[r.id].state == EdgeState.DONE), None)
