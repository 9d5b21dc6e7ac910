"""What equal bytes are promised for: one torch, and one capability of the CPU."""

from __future__ import annotations

import platform

import torch

from fedelmy_node import __version__

__all__ = ["versions"]


def versions() -> dict[str, str]:
    """Of the software that trains here, and what its CPU code is made for."""
    return {
        "fedelmy": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
