"""How torch runs in this process: acceleration, memory, versions.

A CPU uses no acceleration but the plan's `precision`, because it must give reproducible bytes; with
bfloat16 they are those of one kind of CPU. A GPU, unless the site sets
`fast = false`, uses bfloat16 activations, or float16 with gradient scaling if it has no bfloat16;
TF32; and torch.compile, if the step is long enough to pay for a minute of compilation.
"""

from __future__ import annotations

import ctypes
import platform
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

import torch
from torch import Tensor, nn

from fedelmy_node import __version__

_COMPILING_PAYS: Final = 5000
"""Batches per step from which compilation is worth its time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceleration:
    """How a step computes; the default is exact."""

    kind: str = "cpu"
    """The device type."""
    dtype: torch.dtype | None = None
    """The type of the activations; None: that of the parameters."""
    compiled: bool = False
    """Use torch.compile."""

    def computing(self) -> AbstractContextManager[Any]:
        """The context for a forward pass and its loss, in training and evaluation."""
        return nullcontext() if self.dtype is None else torch.autocast(self.kind, self.dtype)

    def scale(self, device: torch.device) -> Scale | None:
        """A gradient scale for one fit; only float16 needs it, as small gradients would vanish."""
        return Scale(device) if self.dtype is torch.float16 else None

    def prepare(self, module: nn.Module) -> None:
        """Call once per model; parameters and their names do not change."""
        if self.compiled:
            module.compile()


@dataclass(slots=True, eq=False)
class Scale:
    """torch's GradScaler for one flat gradient; never waits for the device."""

    device: torch.device
    overflow: Tensor = field(init=False)
    """1 if the latest gradient is not finite: the optimizer then skips the step."""
    _factor: Tensor = field(init=False)
    _growth: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.overflow = torch.zeros((), device=self.device)
        self._factor = torch.full((), 2.0**16, device=self.device)
        self._growth = torch.zeros((), dtype=torch.int32, device=self.device)

    def up(self, loss: Tensor) -> Tensor:
        """The scaled loss, for backward()."""
        return loss * self._factor

    def down(self, grad: Tensor) -> None:
        """Unscale the gradient and set `overflow`; call this before adding other terms."""
        self.overflow.zero_()
        inverse = self._factor.double().reciprocal().float()
        torch._amp_foreach_non_finite_check_and_unscale_([grad], self.overflow, inverse)
        torch._amp_update_scale_(self._factor, self._growth, self.overflow, 2.0, 0.5, 2000)


def acceleration(
    device: torch.device, *, fast: bool, batches: int, precision: str = "float32"
) -> Acceleration:
    """The acceleration for a step of so many batches on this device."""
    if device.type == "cpu" and precision == "bfloat16":
        return Acceleration(kind="cpu", dtype=torch.bfloat16)
    if device.type != "cuda" or not fast:
        return Acceleration(kind=device.type)
    torch.set_float32_matmul_precision("high")
    bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    dtype = torch.bfloat16 if bfloat16 else torch.float16
    compiled = batches >= _COMPILING_PAYS and find_spec("triton") is not None
    return Acceleration(kind="cuda", dtype=dtype, compiled=compiled)


_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Parameters of mallopt, from malloc.h."""
_BLOCK_BYTES: Final = 1 << 30
"""Larger blocks are data sets, not activations: they are still mapped one by one."""
_KEPT_BYTES: Final = 2**31 - 1


@cache
def keep_freed_memory() -> bool:
    """Make malloc reuse freed blocks; False if the C library does not support it.

    By default glibc maps large blocks and unmaps them at once, so the kernel clears every page of
    every activation: a fifth of a small network's time on a CPU (`bench/training.py`).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    options = ((_MMAP_THRESHOLD, _BLOCK_BYTES), (_TRIM_THRESHOLD, _KEPT_BYTES))
    return all(mallopt(*option) for option in options)


def versions() -> dict[str, str]:
    """Versions of the training software, and torch's CPU capability."""
    return {
        "fedelmy": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
