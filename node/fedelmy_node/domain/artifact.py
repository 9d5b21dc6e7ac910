"""What crosses an edge: the tensors of a bundle, the offer, the blocks, the receipt."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fedelmy_node.domain.errors import TransferError
from fedelmy_node.domain.names import EdgeId, RunId, SiteName, StepId, site_name, step_id

SEEN_GROUP: Final = "seen"
SAMPLES: Final = "samples"
"""The only tensor of `SEEN_GROUP`: the number of training samples, for weighted averaging."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class TensorInfo:
    """Name, type and shape of one tensor of a bundle."""

    name: str
    """`group/tensor`, such as `model/conv1.weight`."""
    dtype: str
    """As safetensors spells it: F32, F64, F16, BF16, I64, ..."""
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BundleSpec:
    """What every bundle of one operation has to be, as a trainer found out for a plan."""

    manifest: tuple[TensorInfo, ...]
    metadata: str
    """The safetensors metadata; empty: not known, because older software did not record it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Skip:
    """A step that was skipped, and why."""

    step: StepId
    by: SiteName
    """The site that decided to skip it."""
    code: str
    """Code of the error that made the step's site unreachable."""
    message: str

    def __post_init__(self) -> None:
        step_id(self.step)
        site_name(self.by)
        if len(self.code) > 64 or len(self.message) > 400:
            raise TransferError("E-TRANSFER-OFFER", "the reason for a skip is too long")


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Which steps contributed to a bundle; sent beside the bundle, never inside it."""

    contributors: tuple[StepId, ...] = ()
    """Train steps that contributed, sorted."""
    skipped: tuple[Skip, ...] = ()
    """Skipped steps, sorted by step."""

    def __post_init__(self) -> None:
        for step in self.contributors:
            step_id(step)

    def joined(self, other: Origin) -> Origin:
        """Combine two origins; a step that contributed to either counts as not skipped."""
        contributors = {*self.contributors, *other.contributors}
        skips = {skip.step: skip for skip in other.skipped + self.skipped}
        skipped = tuple(skips[step] for step in sorted(skips.keys() - contributors))
        return Origin(contributors=tuple(sorted(contributors)), skipped=skipped)


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """Announcement of a bundle, sent before its blocks."""

    run: RunId
    edge: EdgeId
    size: int
    sha256: str
    """Digest of the whole bundle, hexadecimal."""
    block_bytes: int
    wire_dtype: str
    manifest: tuple[TensorInfo, ...]
    origin: Origin = field(default_factory=Origin)
    plan_id: str = ""
    """The sender's plan: run names can be reused, plan ids cannot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """Confirms that the receiver has verified, synced and journaled a bundle."""

    edge: EdgeId
    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """An offer with its file, at the sender."""

    offer: Offer
    path: Path
