"""Evaluate a model on test data: counts and metrics, nothing that describes a single sample.

An undefined metric, such as the sensitivity of a class without samples, is None, never NaN.
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


def evaluate(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], classes: Sequence[str]
) -> dict[str, Any]:
    """The metrics of a model, in evaluation mode, on batches of images and labels."""
    logits, labels = [torch.empty(0, len(classes))], [torch.empty(0, dtype=torch.int64)]
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for images, truth in batches:
                logits.append(model(images).float().cpu())
                labels.append(truth.cpu())
    finally:
        model.train(was_training)
    return score(torch.cat(logits), torch.cat(labels), classes)


def validated(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], classes: Sequence[str]
) -> dict[str, Any]:
    """The counts of a result on validation data: settings can be chosen without test data."""
    found = evaluate(model, batches, classes)
    counts = {name: (row["tp"], row["tp"] + row["fn"]) for name, row in found["classes"].items()}
    return {
        "validation_accuracy": found["accuracy"],
        "validated_classes": {
            name: {"samples": samples, "correct": correct}
            for name, (correct, samples) in counts.items()
            if samples
        },
    }


def score(logits: Tensor, labels: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """The metrics of some predictions.

    samples, correct: counts. loss: mean cross-entropy. accuracy: correct / samples.
    balanced_accuracy: mean sensitivity over the classes that have samples; None with fewer than two
    such classes. auc: mean one-vs-rest area over the classes with positive and negative samples.
    classes: tp, fn, fp, tn, sensitivity, specificity and auc of each class.
    """
    count = len(labels)
    predicted = logits.argmax(dim=1) if count else labels
    correct = int((predicted == labels).sum())
    loss = float(functional.cross_entropy(logits.double(), labels)) if count else math.nan
    areas = _areas(logits.double().softmax(dim=1).numpy(), labels.numpy(), len(classes))
    rows = _per_class(predicted, labels, len(classes))
    return {
        "samples": count,
        "correct": correct,
        "accuracy": _ratio(correct, count),
        "balanced_accuracy": _mean((row["sensitivity"] for row in rows), at_least=2),
        "auc": _rounded(_mean(areas)),
        "loss": _rounded(loss),
        "classes": {
            name: {**row, "auc": _rounded(area)}
            for name, row, area in zip(classes, rows, areas, strict=True)
        },
    }


def _per_class(predicted: Tensor, labels: Tensor, classes: int) -> list[dict[str, Any]]:
    actual = torch.bincount(labels, minlength=classes).tolist()
    claimed = torch.bincount(predicted, minlength=classes).tolist()
    hits = torch.bincount(labels[predicted == labels], minlength=classes).tolist()
    rows = []
    for positives, claims, true in zip(actual, claimed, hits, strict=True):
        false = claims - true
        negatives = len(labels) - positives
        row = {"tp": true, "fn": positives - true, "fp": false, "tn": negatives - false}
        sensitivity, specificity = _ratio(true, positives), _ratio(negatives - false, negatives)
        rows.append({**row, "sensitivity": sensitivity, "specificity": specificity})
    return rows


def _areas(
    probabilities: NDArray[np.float64], labels: NDArray[np.int64], classes: int
) -> list[float | None]:
    """The area under each class's one-vs-rest ROC curve; None without both kinds of samples.

    This is the Mann-Whitney statistic. scikit-learn has it too (the tests compare), but importing
    it would double the time of an evaluate step.
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
    pairs = count * (len(scores) - count)
    return float((ranks[positive].sum() - count * (count + 1) / 2) / pairs)


def _ratio(part: int, whole: int) -> float | None:
    return _rounded(part / whole) if whole else None


def _mean(values: Iterable[float | None], at_least: int = 1) -> float | None:
    defined = [value for value in values if value is not None]
    return _rounded(math.fsum(defined) / len(defined)) if len(defined) >= at_least else None


def _rounded(value: float | None) -> float | None:
    """Six digits: more would only add hardware noise to reports."""
    return round(value, 6) if value is not None and math.isfinite(value) else None
