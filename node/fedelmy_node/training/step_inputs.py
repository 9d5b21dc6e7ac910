"""The inputs of a step: received models, and their sample counts if the strategy is weighted.

A bundle of a weighted strategy has a second group with one count. Counts add up along a chain: the
model at the end of a group of sites has the weight of all sites that trained it. A merge resets the
count: the next round is weighted by what it trains itself, or all weights would become equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from fedelmy_node.bundle.verification import check_bundle
from fedelmy_node.domain.artifact import SAMPLES, SEEN_GROUP, TensorInfo
from fedelmy_node.domain.errors import BundleError
from fedelmy_node.training.bundle_file import Groups, read_bundle
from fedelmy_node.training.weights import FlatModel, Weights, mean_weights

MODEL_GROUP: Final = "model"
"""The group of a bundle that is the model's state dict."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Received:
    """One input of a step."""

    weights: Weights
    seen: int
    """Samples trained on since the last merge; 0 after a merge or if the strategy is unweighted."""


def groups_of(model: FlatModel, seen: int | None) -> Groups:
    """The contents of a step's bundle; `seen` is None if the strategy is unweighted."""
    groups: dict[str, Mapping[str, Tensor]] = {MODEL_GROUP: model.state_dict()}
    if seen is not None:
        groups[SEEN_GROUP] = {SAMPLES: torch.tensor([seen], dtype=torch.int64)}
    return groups


def receive(
    path: Path, model: FlatModel, manifest: Sequence[TensorInfo], metadata: str
) -> Received:
    """Read a bundle, which must have exactly the tensors of the manifest, all finite."""
    check_bundle(path, tuple(manifest), metadata)
    groups = read_bundle(path)
    model.load_state_dict(groups[MODEL_GROUP])
    seen = int(groups[SEEN_GROUP][SAMPLES]) if SEEN_GROUP in groups else 0
    return Received(weights=model.weights(), seen=seen)


def mean_of(received: Sequence[Received]) -> Weights:
    """The mean of the models, weighted by their sample counts if they have any."""
    counts = [one.seen for one in received]
    if any(counts) and not all(counts):
        message = "one of the models to be merged has no sample count"
        error = BundleError("E-BUNDLE-FORMAT", message)
        error.inputs = tuple(position for position, count in enumerate(counts) if not count)
        raise error
    return mean_weights([one.weights for one in received], counts if all(counts) else None)
