"""The built-in models: those of the FedELMY paper, and small ones for tests and demos.

Pooling comes before ReLU: values and gradients are the same, with a quarter of the work for ReLU.
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from fedelmy_node.domain.federation import Task


def cnn(task: Task) -> nn.Module:
    """For CIFAR: 319,242 parameters at 3x32x32 and 10 classes."""
    sides = [((side - 2) // 2 - 2) // 2 - 2 for side in (task.input.height, task.input.width)]
    return nn.Sequential(
        *_convolution(task.input.channels, 128, 3),
        *_convolution(128, 128, 3),
        nn.Conv2d(128, 128, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(_features(128, *sides), len(task.classes)),
    )


def cnn_pacs(task: Task) -> nn.Module:
    """For PACS and Office-Caltech-10: 61,751 parameters at 3x32x32 and 7 classes."""
    sides = [((side - 4) // 2 - 4) // 2 for side in (task.input.height, task.input.width)]
    return nn.Sequential(
        *_convolution(task.input.channels, 6, 5),
        *_convolution(6, 16, 5),
        nn.Flatten(),
        *_perceptron(_features(16, *sides), 120, 84, len(task.classes)),
    )


def cnn_tiny(task: Task) -> nn.Module:
    """For Tiny-ImageNet: 2,142,472 parameters at 3x64x64 and 200 classes."""
    sides = [side // 2 // 2 for side in (task.input.height, task.input.width)]
    return nn.Sequential(
        *_convolution(task.input.channels, 32, 3, padding=1),
        *_convolution(32, 64, 3, padding=1),
        nn.Flatten(),
        *_perceptron(_features(64, *sides), 128, len(task.classes)),
    )


def resnet18_cifar(task: Task) -> nn.Module:
    """ResNet-18 for 32x32 images: 11,173,962 parameters at 3 channels and 10 classes.

    A 3x3 stem of stride 1 keeps the image size, which the ImageNet stem would reduce to a quarter.
    """
    from torchvision.models import resnet18

    model: nn.Module = resnet18(weights=None, num_classes=len(task.classes))
    stem = nn.Conv2d(task.input.channels, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.conv1 = stem
    model.maxpool = nn.Identity()
    return model


def linear(task: Task) -> nn.Module:
    """One linear layer on the flattened image or vector."""
    return nn.Sequential(nn.Flatten(), nn.Linear(_values(task), len(task.classes)))


def mlp(task: Task) -> nn.Module:
    """Two hidden layers on the flattened image or vector."""
    return nn.Sequential(nn.Flatten(), *_perceptron(_values(task), 128, 64, len(task.classes)))


def cnn_small(task: Task) -> nn.Module:
    """Two convolutions, pooled to 4x4 for any input size, and one linear layer."""
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


def _convolution(inputs: int, outputs: int, size: int, padding: int = 0) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, size, padding=padding), nn.MaxPool2d(2), nn.ReLU()]


def _perceptron(*sizes: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return layers[:-1]


def _values(task: Task) -> int:
    return task.input.channels * task.input.height * task.input.width


def _features(channels: int, height: int, width: int) -> int:
    """Inputs of the first linear layer; at least one, as `build` reports small images better."""
    return channels * max(height, 1) * max(width, 1)
