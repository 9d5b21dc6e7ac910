"""An operation's own loops: their state and progress."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Generator, Tensor

from fedelmy_node.domain.events import EventKind
from fedelmy_node.training.job import Emit

State = MutableMapping[str, Tensor | Generator | int | float]
"""What a loop changes, by name: tensors in place or not, numbers, and random generators."""
EVERY_SECONDS: Final = 5.0
"""Between two checkpoints of a loop, unless it says otherwise."""
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,30}")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopOrder:
    """Which loop, and how many iterations it has."""

    name: str
    """What a site is shown, such as `distilling`."""
    count: int

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"{self.name[:40]!r} is not a valid loop name: use a word such as distilling"
            )


@dataclass(kw_only=True, slots=True, eq=False)
class LoopPoint:
    """A loop between two iterations."""

    number: int
    """Of the loop in its step, from 0."""
    order: LoopOrder
    index: int
    """The next iteration."""
    fits: int
    """Fits of the step that were complete, including those inside the loop."""
    loops: int
    """Loops of the step that were begun."""
    tensors: Mapping[str, Tensor] | None
    """Its state, on the CPU; None once it is on disk and no longer needed here."""
    sha256: str | None = None
    """Digest of its file, once written."""


def captured(state: State) -> dict[str, Tensor]:
    """A copy of a loop's state, on the CPU."""
    return {name: _tensor(value) for name, value in state.items()}


def restore(state: State, tensors: Mapping[str, Tensor]) -> None:
    """Set a state to a copy of it; tensors keep their identity."""
    with torch.no_grad():
        for name, value in state.items():
            if isinstance(value, Generator):
                value.set_state(tensors[name].clone())
            elif isinstance(value, Tensor):
                value.copy_(tensors[name])
            else:
                state[name] = type(value)(tensors[name].item())


def iterate(
    order: LoopOrder,
    emit: Emit,
    is_due: Callable[[], bool],
    save: Callable[[int], None],
    start: int = 0,
) -> Iterator[int]:
    """Count from `start`; where it is due, save the next index and report the progress."""
    began, index = time.monotonic(), start
    if 0 < start < order.count:
        emit(EventKind.PROGRESS, {"phase": order.name, "share": start / order.count})
    while index < order.count:
        yield index
        index += 1
        if is_due():
            save(index)
            seconds = (time.monotonic() - began) / (index - start) * (order.count - index)
            data = {"phase": order.name, "share": index / order.count}
            emit(EventKind.PROGRESS, {**data, "eta_seconds": round(seconds, 1)})


def unsaved(
    order: LoopOrder, state: State, every_seconds: float, emit: Emit = lambda kind, data: None
) -> Iterator[int]:
    """A loop without checkpoints, as in simulation."""
    saved_at = time.monotonic()

    def is_due() -> bool:
        return time.monotonic() - saved_at >= every_seconds

    def save(index: int) -> None:
        nonlocal saved_at
        saved_at = time.monotonic()

    return iterate(order, emit, is_due, save)


def _tensor(value: Tensor | Generator | int | float) -> Tensor:
    if isinstance(value, Generator):
        return value.get_state()
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
