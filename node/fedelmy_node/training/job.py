"""What the daemon sends to a trainer and gets back; simulation calls the same code.

A trainer gets one `Job`, loads what it needs (torch, data, model) and reports `ready`. It then
waits for its inputs, so that a site can load while its neighbour is still training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from fedelmy_node.domain.artifact import TensorInfo
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.federation import Recipe
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.plan_steps import StepKind

JOBS: Final[Mapping[StepKind, Literal["train", "merge", "evaluate"]]] = {
    StepKind.TRAIN: "train",
    StepKind.MERGE: "merge",
    StepKind.EVALUATE: "evaluate",
}
"""Steps that need a trainer; a deliver step only keeps its input."""

Emit = Callable[[EventKind, Mapping[str, Any]], None]
"""Reports progress; called with the kinds RESUMED, BEGUN, EPOCH, MEMBER and WARNING."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSpec:
    """Where the site's samples are."""

    source: str
    """`KIND` or `KIND:PATH`, as in --data."""
    indices: Path | None = None
    """A file of `fedelmy-launch partition`: the site's subset of the source."""
    unreadable: Literal["refuse", "skip"] = "refuse"
    """Stop at an unreadable file, or count and skip it."""
    spill: Path | None = None
    """A directory for samples that do not fit into memory; None: all must fit."""
    memory_bytes: int | None = None
    """Memory limit for samples; None: half of the available memory."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input bundle of a step."""

    path: Path
    sha256: str
    """The journaled digest, checked at every read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One unit of work for a trainer."""

    kind: Literal["prepare", "train", "merge", "evaluate"]
    """prepare builds the model on the meta device and opens the data; the others are steps."""
    site: SiteName
    visit: int
    """Visit of the step; 0 if nothing is trained."""
    recipe: Recipe
    data: DataSpec
    device: str = "cpu"
    """cpu, cuda, cuda:N or auto."""
    output: Path | None = None
    """The bundle that a train or merge step writes."""
    keep_pool: Path | None = None
    """A directory for all pool members, if the site keeps them."""
    max_change: float | None = None
    """The largest distance of an input from the initial model, relative to that model's norm."""
    code: tuple[str, ...] = ()
    """`module:function` models that this site allows; anyone may write a recipe."""
    checkpoints: Path | None = None
    """A directory for the job's checkpoints; None: no checkpoints."""
    features: int = 0
    """Number of test samples whose features an evaluate step reports."""
    processes: int = 1
    """Processes that train the step together; with more than one, bytes may differ."""
    fast: bool = True
    """Use mixed precision and the like on a GPU; has no effect on a CPU."""
    trial: bool = False
    """prepare: also train a few batches and report the time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of a job."""

    sha256: str | None = None
    """Digest of the bundle that a train or merge step wrote."""
    bytes: int = 0
    manifest: tuple[TensorInfo, ...] = ()
    """prepare: the tensors of every bundle of this recipe."""
    metadata: str = ""
    """prepare: the metadata of every such bundle."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """Counts and metrics: all that may leave the site."""
    private: tuple[str, ...] = ()
    """prepare: the first unreadable files; these stay on the machine."""
