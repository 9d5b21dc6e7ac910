"""The loss of a batch of scores.

With plain cross-entropy, a site without samples of a class learns that the class never occurs, and
so unlearns what other sites taught. The prior correction adds the logarithm of the site's own class
frequencies to the scores, in the loss only. They explain how rare a class is here, so the model
does not have to. Validation and inference do not use them, and they never leave the site.

Class weights multiply each sample's loss by the weight of its class, scaled so that the mean over
the site's samples is 1: the loss keeps its size, and so do learning rate and regularisers. A batch
is divided by its number of samples, so it has the same gradient however many processes share it.

Together: the frequencies of the prior correction are those of the weighted samples, because these
are what the model sees. With `balanced` weights, only classes that the site lacks are then
corrected. Label smoothing spreads its share evenly over the classes, or, with the prior correction,
by these frequencies: an even share would teach the model a class that the site lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from fedelmy_node.domain.federation import Training

BatchTerm = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A strategy's addition to the loss of (images, scores, labels): a mean over the given samples."""


class Loss:
    """Mean loss of a batch of scores; nothing in it waits for the device."""

    def __init__(
        self, training: Training, labels: Tensor, classes: Sequence[str], device: torch.device
    ) -> None:
        """`labels`: those of all training samples of the site."""
        self.classes: Final = len(classes)
        self._smoothing = training.label_smoothing
        self.counts: Final = torch.bincount(labels.cpu(), minlength=self.classes)
        """Training samples of every class."""
        counts = self.counts.double()
        weights = _class_weights(training, counts, classes)
        self._weights = None if weights is None else weights.float().to(device)
        self._log_prior: Tensor | None = None
        if training.loss == "prior_corrected":
            seen = counts if weights is None else counts * weights
            seen = seen + 1  # each class counts once more, so that no frequency is 0
            self._log_prior = (seen / seen.sum()).log().float().to(device)

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        prior, smoothing = self._log_prior, self._smoothing
        scores = scores if prior is None else scores + prior
        even = smoothing if prior is None else 0.0
        if self._weights is None and even == smoothing:
            return functional.cross_entropy(scores, labels, label_smoothing=even)
        each = functional.cross_entropy(scores, labels, label_smoothing=even, reduction="none")
        if prior is not None and smoothing:
            spread = (functional.log_softmax(scores, dim=1) * prior.exp()).sum(dim=1)
            each = (1 - smoothing) * each - smoothing * spread
        return (each if self._weights is None else each * self._weights[labels]).mean()


def _class_weights(training: Training, counts: Tensor, classes: Sequence[str]) -> Tensor | None:
    """The weight of every class; the mean over the site's samples is 1. In float64."""
    given = training.class_weights
    if given is None:
        return None
    if isinstance(given, Mapping):
        weights = torch.tensor([given.get(name, 1.0) for name in classes], dtype=torch.float64)
    else:
        weights = 1 / counts.clamp_min(1)
    return weights * (counts.sum() / (counts @ weights))
