"""What crosses an edge, as both ends speak of it: the offer, the blocks, the receipt."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fedelmy_node.bundles.manifest import TensorInfo
from fedelmy_node.domain.names import EdgeId, RunId, SiteName, StepId, site_name, step_id
from fedelmy_node.errors import TransferError

__all__ = ["BLOCK_BYTES", "SMALLEST_BLOCK_BYTES", "Skip", "Origin", "Offer", "Parcel", "Block", "Receipt"]

BLOCK_BYTES: Final = 1 << 20
"""Of every block but the last: large enough to be fast, small enough to lose little."""
SMALLEST_BLOCK_BYTES: Final = 64 << 10
"""That every receiver takes: for links that do not last for larger ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Skip:
    """A step that was left out, and why."""

    step: StepId
    by: SiteName
    """The site that went around it."""
    code: str
    """Of the error that made the step's site unreachable."""
    message: str

    def __post_init__(self) -> None:
        step_id(self.step)
        site_name(self.by)
        if len(self.code) > 64 or len(self.message) > 400:
            raise TransferError("E-TRANSFER-OFFER", "a reason for a skip is too long")


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Whose work a bundle holds; travels beside the bundle, never in it."""

    contributors: tuple[StepId, ...] = ()
    """The train steps that are in it, sorted."""
    skipped: tuple[Skip, ...] = ()
    """The steps that were left out on the way, sorted by step."""

    def __post_init__(self) -> None:
        for step in self.contributors:
            step_id(step)

    def joined(self, other: Origin) -> Origin:
        """Of a bundle that both are in; a step that contributed on any way was not skipped."""
        contributors = {*self.contributors, *other.contributors}
        skipped = {skip.step: skip for skip in other.skipped + self.skipped if skip.step not in contributors}
        return Origin(
            contributors=tuple(sorted(contributors)), skipped=tuple(skipped[step] for step in sorted(skipped))
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """What a sender says of a bundle before it sends it."""

    run: RunId
    edge: EdgeId
    size: int
    sha256: str
    """Of the whole bundle, hexadecimal."""
    block_bytes: int
    wire_dtype: str
    manifest: tuple[TensorInfo, ...]
    origin: Origin = field(default_factory=Origin)
    plan_id: str = ""
    """Of the plan that the sender has: a run's name can be used again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """The receiver has the bundle: verified, synced and journaled."""

    edge: EdgeId
    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """An offer and the file that it is about, at the sender."""

    offer: Offer
    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One piece of a bundle."""

    index: int
    data: bytes | memoryview
    running_sha256: bytes
    """Of the whole bundle up to and including `data`; the last block's is the bundle's."""
