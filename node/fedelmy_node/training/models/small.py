"""Small models for tests, demonstrations and tiny images: they take any input size and channel count."""

from __future__ import annotations

from torch import nn

from fedelmy_node.domain.federation import Task

__all__ = ["mlp", "cnn_small"]


def mlp(task: Task) -> nn.Module:
    """Two hidden layers on the flattened image."""
    inputs = task.input.channels * task.input.height * task.input.width
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, len(task.classes)),
    )


def cnn_small(task: Task) -> nn.Module:
    """Two convolutions, pooled to 4x4 whatever the input's size, and one linear layer."""
    return nn.Sequential(
        nn.Conv2d(task.input.channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 16, len(task.classes)),
    )
