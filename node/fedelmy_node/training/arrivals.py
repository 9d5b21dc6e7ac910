"""What a step is given: the models in its inputs, and how many samples each has seen where the strategy weighs by that.

A bundle of a weighing strategy has a second group with that one count. It adds up along a chain: what arrives at the
end of a group of sites weighs as much as all that trained it. A merge begins it anew: what weighs in the next round is
what was trained in that round, or in time all would weigh the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from fedelmy_node.bundles.manifest import SAMPLES, SEEN_GROUP, TensorInfo
from fedelmy_node.bundles.stream import check_bundle
from fedelmy_node.errors import BundleError
from fedelmy_node.training.bundle import Groups, read_bundle
from fedelmy_node.training.flat import FlatModel, Weights
from fedelmy_node.training.pool import mean_weights

__all__ = ["MODEL_GROUP", "Received", "groups_of", "receive", "mean_of"]

MODEL_GROUP: Final = "model"
"""The group of a bundle that is the model's state dict."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Received:
    """One input of a step."""

    weights: Weights
    seen: int
    """Samples that the model was trained on since the last merge; 0 after a merge, or where bundles do not say so."""


def groups_of(model: FlatModel, seen: int | None) -> Groups:
    """What a step's bundle holds; `seen` is None where the strategy does not weigh."""
    groups: dict[str, Mapping[str, Tensor]] = {MODEL_GROUP: model.state_dict()}
    if seen is not None:
        groups[SEEN_GROUP] = {SAMPLES: torch.tensor([seen], dtype=torch.int64)}
    return groups


def receive(path: Path, model: FlatModel, manifest: Sequence[TensorInfo], metadata: str) -> Received:
    """The model in a bundle, which must have exactly the tensors of the manifest, all finite."""
    check_bundle(path, tuple(manifest), metadata)
    groups = read_bundle(path)
    model.load_state_dict(groups[MODEL_GROUP])
    seen = int(groups[SEEN_GROUP][SAMPLES]) if SEEN_GROUP in groups else 0
    return Received(weights=model.weights(), seen=seen)


def mean_of(received: Sequence[Received]) -> Weights:
    """Every model alike, or, where bundles say so, by the samples that it has seen."""
    counts = [one.seen for one in received]
    if any(counts) and not all(counts):
        message = "one of the models to be merged does not say how many samples it has seen"
        error = BundleError("E-BUNDLE-FORMAT", message)
        error.inputs = tuple(position for position, count in enumerate(counts) if not count)
        raise error
    return mean_weights([one.weights for one in received], counts if all(counts) else None)
