"""A model's penultimate features of test samples, projected to two dimensions (t-SNE).

The picture shows single samples, if only relative to each other. A site computes it only if the
federation asks for it and the site discloses "features".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_MIN_SAMPLES: Final = 8
_PERPLEXITY: Final = 30.0
_DIGITS: Final = 3


def embedding(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], limit: int, *, seed: int
) -> dict[str, Any] | None:
    """Points and labels of at most `limit` evenly chosen samples; None if there are too few."""
    features, labels = penultimate(model, batches)
    count = len(labels)
    if count < _MIN_SAMPLES:
        return None
    chosen = np.linspace(0, count - 1, min(limit, count)).round().astype(int)
    points = _project(features[chosen], seed)
    return {
        "points": [[round(float(x), _DIGITS), round(float(y), _DIGITS)] for x, y in points],
        "labels": labels[chosen].tolist(),
        "of": count,
    }


def penultimate(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The input of the last linear layer per sample; the outputs of a model that has none."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    seen: list[Tensor] = []
    labels: list[Tensor] = []
    hook = None
    if layers:
        hook = layers[-1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for images, truth in batches:
                outputs = model(images)
                if hook is None:
                    seen.append(outputs)
                labels.append(truth)
    finally:
        model.train(was_training)
        if hook is not None:
            hook.remove()
    if not labels:
        return np.empty((0, 1)), np.empty(0, dtype=np.int64)
    features = torch.cat([values.flatten(1).cpu().double() for values in seen]).numpy()
    return features, torch.cat(labels).cpu().numpy().astype(np.int64)


def _project(features: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    from sklearn.manifold import TSNE

    perplexity = min(_PERPLEXITY, (len(features) - 1) / 3)
    # Features that are all equal have no principal axes to start from.
    begin = "pca" if float(features.std()) > 0 and features.shape[1] > 1 else "random"
    projection = TSNE(n_components=2, perplexity=perplexity, init=begin, random_state=seed % 2**32)
    points: NDArray[np.float64] = np.nan_to_num(projection.fit_transform(features))
    return points
