"""What makes training fast on a GPU and is not exact to the bit: the one place that decides about it.

On a CPU nothing of this is used, ever: equal bytes are promised there. On a GPU, unless the site says `fast = false`:
activations in bfloat16, or in float16 with scaled gradients where the GPU has no bfloat16; TF32; and torch.compile, if
the step is long enough to pay for the minute that compiling takes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

__all__ = ["Acceleration", "Scale", "acceleration"]

_COMPILING_PAYS: Final = 5000
"""Batches of a step from which on compiling is worth its time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceleration:
    """How a step computes; the default is exact."""

    kind: str = "cpu"
    """Of the device."""
    dtype: torch.dtype | None = None
    """Of the activations; None: the parameters' own."""
    compiled: bool = False
    """The model goes through torch.compile."""

    def computing(self) -> AbstractContextManager[Any]:
        """Around a forward pass and its loss, in training and evaluation."""
        return nullcontext() if self.dtype is None else torch.autocast(self.kind, self.dtype)

    def scale(self, device: torch.device) -> Scale | None:
        """For the gradients of one fit; only float16 needs it: its smallest numbers are too large for them."""
        return Scale(device) if self.dtype is torch.float16 else None

    def prepare(self, module: nn.Module) -> None:
        """Once per model; its parameters and their names stay as they are."""
        if self.compiled:
            module.compile()


@dataclass(slots=True, eq=False)
class Scale:
    """torch's GradScaler for one flat gradient, with its rules and kernels; nothing in it waits for the device."""

    device: torch.device
    overflow: Tensor = field(init=False)
    """1 if the newest gradient is not finite: the optimizer then leaves everything as it is."""
    _factor: Tensor = field(init=False)
    _growth: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.overflow = torch.zeros((), device=self.device)
        self._factor = torch.full((), 2.0**16, device=self.device)
        self._growth = torch.zeros((), dtype=torch.int32, device=self.device)

    def up(self, loss: Tensor) -> Tensor:
        """What backward() starts from."""
        return loss * self._factor

    def down(self, grad: Tensor) -> None:
        """The gradient as it is, and whether it overflowed. Whatever is added to it is added afterwards."""
        self.overflow.zero_()
        inverse = self._factor.double().reciprocal().float()
        torch._amp_foreach_non_finite_check_and_unscale_([grad], self.overflow, inverse)
        torch._amp_update_scale_(self._factor, self._growth, self.overflow, 2.0, 0.5, 2000)


def acceleration(device: torch.device, *, fast: bool, batches: int) -> Acceleration:
    """What a step of so many batches uses on this device."""
    if device.type != "cuda" or not fast:
        return Acceleration(kind=device.type)
    torch.set_float32_matmul_precision("high")
    dtype = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return Acceleration(kind="cuda", dtype=dtype, compiled=batches >= _COMPILING_PAYS and _can_compile())


def _can_compile() -> bool:
    from importlib.util import find_spec

    return find_spec("triton") is not None
