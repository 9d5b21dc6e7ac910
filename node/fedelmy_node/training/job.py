"""What the daemon asks of a trainer and what it gets back; also what simulation hands to the same code.

A trainer is started with one `Job`, loads what the job needs (torch, data, model) and says `ready`. It
then waits for its inputs, so that a site can load while its neighbour is still training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from fedelmy_node.bundles.manifest import TensorInfo
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.federation import Recipe
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.plan import StepKind

__all__ = ["JOBS", "DataSpec", "Input", "Job", "Outcome", "Emit"]

JOBS: Final[Mapping[StepKind, Literal["train", "merge", "evaluate"]]] = {
    StepKind.TRAIN: "train", StepKind.MERGE: "merge", StepKind.EVALUATE: "evaluate",
}  # fmt: skip
"""The kinds of steps that are computed; a deliver step keeps what it is given."""

Emit = Callable[[EventKind, Mapping[str, Any]], None]
"""How training reports progress; called with the kinds RESUMED, BEGUN, EPOCH, MEMBER and WARNING."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSpec:
    """Where the site's samples are."""

    source: str
    """`KIND` or `KIND:PATH`, as after --data."""
    indices: Path | None = None
    """A file that `fedelmy-launch partition` wrote: the subset of the source that is this site's."""
    unreadable: Literal["refuse", "skip"] = "refuse"
    """What to do with a file that cannot be read: name it and stop, or count it and leave it out."""
    spill: Path | None = None
    """A directory for samples that do not fit into memory, while the job runs; None: all of them must fit."""
    memory_bytes: int | None = None
    """What samples may take of the memory; None: half of what the machine has available."""


@dataclass(frozen=True, slots=True)
class Input:
    """A bundle that a step is given."""

    path: Path
    sha256: str
    """As journaled: the file must have it whenever it is read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One unit of work for a trainer."""

    kind: Literal["prepare", "train", "merge", "evaluate"]
    """prepare: build the model on the meta device, open the data, report the manifest; the others are steps."""
    site: SiteName
    visit: int
    """Of the step; 0 where nothing is trained."""
    recipe: Recipe
    data: DataSpec
    device: str = "cpu"
    """cpu, cuda or cuda:N; `auto` is resolved by the trainer."""
    output: Path | None = None
    """Where a train or merge step writes its bundle."""
    keep_pool: Path | None = None
    """A directory for every pool member, if the site wants to keep them."""
    max_change: float | None = None
    """How far an input may be from the initial model, in lengths of that one; None: as far as it likes."""
    code: tuple[str, ...] = ()
    """Models as `module:function` that whoever owns this machine allows; a recipe may come from anybody."""
    checkpoints: Path | None = None
    """A directory of the job's own, where a train step can go on from; None: there are no checkpoints."""
    features: int = 0
    """Test samples whose features an evaluate step draws for the report; 0: none."""
    processes: int = 1
    """Processes that train the step together; more than one is outside the promise of equal bytes."""
    fast: bool = True
    """On a GPU, mixed precision and the like; a CPU never has them."""
    trial: bool = False
    """prepare: also train a few batches on the device, and report how long they took."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a job came to."""

    sha256: str | None = None
    """Of the bundle that a train or merge step wrote."""
    bytes: int = 0
    """Its size."""
    manifest: tuple[TensorInfo, ...] = ()
    """prepare: the tensors that a bundle of this recipe's model has."""
    metadata: str = ""
    """prepare: what such a bundle says of itself."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """Counts and metrics: all that may leave the site."""
    private: tuple[str, ...] = ()
    """prepare: the first files that cannot be read; this stays on the machine."""
