"""The models of the FedELMY paper, with their parameter counts at the paper's inputs.

Pooling comes before ReLU: the values and gradients are the same, and ReLU has a quarter of the work.
"""

from __future__ import annotations

from torch import nn

from fedelmy_node.domain.federation import Task

__all__ = ["cnn", "cnn_pacs", "cnn_tiny", "resnet18_cifar"]


def cnn(task: Task) -> nn.Module:
    """For CIFAR: 319,242 parameters at 3x32x32 and 10 classes."""
    sides = [_half(_half(side - 2) - 2) - 2 for side in (task.input.height, task.input.width)]
    return nn.Sequential(
        nn.Conv2d(task.input.channels, 128, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(128, 128, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(128, 128, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(_features(128, *sides), len(task.classes)),
    )


def cnn_pacs(task: Task) -> nn.Module:
    """For PACS and Office-Caltech-10: 61,751 parameters at 3x32x32 and 7 classes."""
    sides = [_half(_half(side - 4) - 4) for side in (task.input.height, task.input.width)]
    return nn.Sequential(
        nn.Conv2d(task.input.channels, 6, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(_features(16, *sides), 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, len(task.classes)),
    )


def cnn_tiny(task: Task) -> nn.Module:
    """For Tiny-ImageNet: 2,142,472 parameters at 3x64x64 and 200 classes."""
    sides = [_half(_half(side)) for side in (task.input.height, task.input.width)]
    return nn.Sequential(
        nn.Conv2d(task.input.channels, 32, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(_features(64, *sides), 128),
        nn.ReLU(),
        nn.Linear(128, len(task.classes)),
    )


def resnet18_cifar(task: Task) -> nn.Module:
    """ResNet-18 for 32x32 images: 11,173,962 parameters at 3 channels and 10 classes.

    The stem of the ImageNet model shrinks the image to a quarter; a 3x3 convolution of stride 1 keeps it.
    """
    from torchvision.models import resnet18

    model: nn.Module = resnet18(weights=None, num_classes=len(task.classes))
    stem = nn.Conv2d(task.input.channels, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.conv1 = stem
    model.maxpool = nn.Identity()
    return model


def _half(side: int) -> int:
    """A side after max-pooling by two."""
    return side // 2


def _features(channels: int, height: int, width: int) -> int:
    """Inputs of the first linear layer; at least one, as `build` tells too small images better than torch does."""
    return channels * max(height, 1) * max(width, 1)
