"""What the daemon sends to a trainer and gets back; simulation calls the same code.

A trainer gets one `Job`, loads what it needs (torch, data, model) and reports `ready`. It then
waits for its inputs, so that a site can load while its neighbour is still training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from fedelmy_node.domain.artifact import BundleSpec
from fedelmy_node.domain.events import EventKind
from fedelmy_node.domain.federation import Recipe
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.step_traits import MODEL, TRAIN

PREPARE: Final = "prepare"
"""The kind of a job that is no step: it builds the model on the meta device and opens the data."""
Emit = Callable[[EventKind, Mapping[str, Any]], None]
"""Reports progress; called with the kinds RESUMED, BEGUN, EPOCH, MEMBER, PROGRESS and WARNING."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheSpec:
    """A directory of files that can be computed again."""

    directory: Path
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Input:
    """An input bundle of a step."""

    path: Path
    sha256: str
    """The journaled digest, checked at every read."""
    operation: str = TRAIN
    """The operation that made it."""
    role: str = MODEL
    """The role in which the step takes it."""
    contributors: tuple[StepId, ...] = ()
    """The steps that trained what it contains."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One unit of work for a trainer."""

    kind: str
    """The operation of a step, or `PREPARE`."""
    site: SiteName
    visit: int
    """Visit of the step; 0 if nothing is trained."""
    recipe: Recipe
    data: DataSpec
    device: str = "cpu"
    """cpu, cuda, cuda:N or auto."""
    output: Path | None = None
    """The bundle that the step writes."""
    state: Path | None = None
    """The state that the step leaves at this site."""
    keep_pool: Path | None = None
    """A directory for all pool members, if the site keeps them."""
    max_change: float | None = None
    """The largest distance of an input from the initial model, relative to that model's norm."""
    min_class_samples: int = 1
    """Samples of the smallest class that the step may read; 1: any number, as in simulation."""
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
    weights: Path | None = None
    """The site's directory of weights that models start from."""
    feature_cache: CacheSpec | None = None
    """Where features of frozen models are kept; None: computed for every step."""
    secret: str = field(default="", repr=False)
    """For operations that make their output from a secret of the site: hexadecimal, the same
    whenever the step is computed again, and never written to disk."""
    trial: bool = False
    """prepare: also train a few batches and report the time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of a job."""

    sha256: str | None = None
    """Digest of the bundle that the step wrote."""
    bytes: int = 0
    state_sha256: str = ""
    """Digest of the state that the step left; empty: none."""
    state_bytes: int = 0
    specs: Mapping[str, BundleSpec] = field(default_factory=dict)
    """prepare: what a bundle of each operation has to be."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """Counts and metrics: all that may leave the site."""
    private: tuple[str, ...] = ()
    """prepare: the first unreadable files; these stay on the machine."""
