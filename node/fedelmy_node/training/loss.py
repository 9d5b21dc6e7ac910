"""What training minimises on a batch: cross-entropy as it is, or corrected by how often a site sees each class.

A site without samples of a class learns from plain cross-entropy that this class never occurs, and so unlearns what
other sites taught. The correction adds the logarithm of the site's own class frequencies to the scores, in the loss
only: how rare a class is here is then explained by the frequencies and not by the model. What the model
itself says, at validation and afterwards, is without them; so they never leave the site.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from fedelmy_node.domain.federation import LossName

__all__ = ["Loss"]


class Loss:
    """Mean loss of a batch of scores; nothing in it waits for the device."""

    def __init__(self, name: LossName, labels: Tensor, classes: int, device: torch.device) -> None:
        self.classes: Final = classes
        """How many there are."""
        self._log_prior = _log_prior(labels, classes).to(device) if name == "prior_corrected" else None

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        if self._log_prior is not None:
            scores = scores + self._log_prior
        return functional.cross_entropy(scores, labels)


def _log_prior(labels: Tensor, classes: int) -> Tensor:
    """Of the classes among the training labels, each counted once more than it is there: none has frequency 0."""
    counts = torch.bincount(labels.cpu(), minlength=classes).double() + 1
    return (counts / counts.sum()).log().float()
