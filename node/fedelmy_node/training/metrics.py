"""How good a model is on a site's test data: counts and metrics, nothing that describes a single sample.

A metric that is undefined, such as the sensitivity for a class without samples, is None, never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["evaluate", "score"]


def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], classes: Sequence[str]) -> dict[str, Any]:
    """The metrics of a model, in evaluation mode, on batches of images and labels."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            results = [(model(images).float().cpu(), labels.cpu()) for images, labels in batches]
    finally:
        model.train(was_training)
    logits = torch.cat([batch for batch, _ in results]) if results else torch.empty(0, len(classes))
    labels = torch.cat([batch for _, batch in results]) if results else torch.empty(0, dtype=torch.int64)
    return score(logits, labels, classes)


def score(logits: Tensor, labels: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """The metrics of some predictions.

    samples, correct: counts. loss: mean cross-entropy. accuracy: correct / samples. balanced_accuracy: mean
    sensitivity over the classes that have samples. auc: mean one-against-the-rest area over the classes that
    have both samples and counter-samples. classes: for each, tp, fn, fp, tn, sensitivity, specificity, auc.
    """
    count = len(labels)
    predicted = logits.argmax(dim=1) if count else labels
    correct = int((predicted == labels).sum())
    loss = float(functional.cross_entropy(logits.double(), labels)) if count else math.nan
    areas = _areas(logits.double().softmax(dim=1).numpy(), labels.numpy(), len(classes))
    rows = _per_class(predicted, labels, len(classes))
    table = {name: {**row, "auc": _rounded(area)} for name, row, area in zip(classes, rows, areas, strict=True)}
    return {
        "samples": count,
        "correct": correct,
        "accuracy": _ratio(correct, count),
        "balanced_accuracy": _mean(row["sensitivity"] for row in table.values()),
        "auc": _rounded(_mean(areas)),
        "loss": _rounded(loss),
        "classes": table,
    }


def _per_class(predicted: Tensor, labels: Tensor, classes: int) -> list[dict[str, Any]]:
    actual = torch.bincount(labels, minlength=classes).tolist()
    claimed = torch.bincount(predicted, minlength=classes).tolist()
    hits = torch.bincount(labels[predicted == labels], minlength=classes).tolist()
    rows = []
    for positives, claims, true in zip(actual, claimed, hits, strict=True):
        false = claims - true
        negatives = len(labels) - positives
        rows.append(
            {
                "tp": true,
                "fn": positives - true,
                "fp": false,
                "tn": negatives - false,
                "sensitivity": _ratio(true, positives),
                "specificity": _ratio(negatives - false, negatives),
            }
        )
    return rows


def _areas(probabilities: NDArray[np.float64], labels: NDArray[np.int64], classes: int) -> list[float | None]:
    """The area under each class's ROC curve against the rest; None without both kinds of samples.

    The area is the Mann-Whitney statistic. scikit-learn, which the tests compare with, has it too, but importing
    it would take an evaluate step as long as everything else that it does.
    """
    areas: list[float | None] = []
    finite = bool(np.isfinite(probabilities).all())
    for number in range(classes):
        positive = labels == number
        if not positive.any() or positive.all() or not finite:
            areas.append(None)
        else:
            areas.append(_area(probabilities[:, number], positive))
    return areas


def _area(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """How often a positive sample scores above a negative one; a tie counts half."""
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(sizes) - (sizes - 1) / 2)[group]
    count = int(positive.sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(scores) - count)))


def _ratio(part: int, whole: int) -> float | None:
    return _rounded(part / whole) if whole else None


def _mean(values: Iterable[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return _rounded(math.fsum(defined) / len(defined)) if defined else None


def _rounded(value: float | None) -> float | None:
    """Six digits: more would only carry the noise of the hardware into reports."""
    return round(value, 6) if value is not None and math.isfinite(value) else None
