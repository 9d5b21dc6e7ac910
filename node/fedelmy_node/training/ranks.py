"""Several processes that train one step together, each with its part of every batch.

All of them run the same strategy on the same model: after every batch the gradients are summed over the processes, and
whatever follows (distances, optimizer, choice of the epoch) is computed by each of them from equal numbers. Buffers,
such as BatchNorm's statistics, are those of the first process: the others take them over before an epoch is judged.
The first process alone writes and reports.

The processes meet through a file, and talk over the loopback device (gloo) or between GPUs (NCCL): nothing listens on
the network. There is no time-out: a process that is gone is noticed by its pipe (`team.py`).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from fedelmy_node.errors import TrainingError
from fedelmy_node.training.data.samples import Samples
from fedelmy_node.training.flat import FlatModel

__all__ = ["Ranks", "ALONE"]

_PATIENCE: Final = timedelta(days=30)
"""Of torch, which wants one: longer than any part of a step."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Which of the processes this one is; alone, none of these methods does anything."""

    number: int = 0
    """From 0; 0 is the one that the daemon started."""
    count: int = 1
    """How many there are."""

    @property
    def first(self) -> bool:
        return self.number == 0

    @property
    def seed(self) -> tuple[int, ...]:
        """What a place of random numbers is followed by here: each process augments and drops in its own way."""
        return (self.number,) if self.number else ()

    def join(self, meeting: Path, device: torch.device) -> None:
        """Meet the others; the file must not exist before the first of them comes."""
        if self.count == 1:
            return
        from torch import distributed  # a second of imports, for those who need it

        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback
        distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=distributed.FileStore(str(meeting), self.count),  # type: ignore[attr-defined]
            rank=self.number,
            world_size=self.count,
            timeout=_PATIENCE,
        )

    def device(self, device: torch.device) -> torch.device:
        """This process's own: GPUs are counted from the one that the site named."""
        if self.count == 1 or device.type != "cuda":
            return device
        return torch.device("cuda", (device.index or 0) + self.number)

    def own(self, chosen: Tensor) -> Tensor:
        """This process's part of a batch; of a small one perhaps nothing."""
        return chosen if self.count == 1 else chosen[self.number :: self.count]

    def share(self, samples: Samples) -> Samples:
        """This process's part of samples that are only looked at."""
        if self.count == 1:
            return samples
        begin, end = (len(samples) * rank // self.count for rank in (self.number, self.number + 1))
        return samples.part(begin, end)

    def add_up(self, *tensors: Tensor) -> None:
        """Make each the sum of all processes'."""
        if self.count > 1:
            from torch import distributed

            for tensor in tensors:
                distributed.all_reduce(tensor)

    def agree(self, model: FlatModel) -> None:
        """Take the first process's values."""
        if self.count > 1:
            from torch import distributed

            for tensor in (model.theta, *model.rest.values()):
                distributed.broadcast(tensor, 0)

    def require_equal(self, numbers: Sequence[int], device: torch.device) -> None:
        """E-TRAINING-CRASH unless all processes give the same: they would wait for each other for ever."""
        if self.count > 1:
            from torch import distributed

            largest = torch.tensor([*numbers, *(-number for number in numbers)], device=device)
            distributed.all_reduce(largest, distributed.ReduceOp.MAX)
            if largest.tolist() != [*numbers, *(-number for number in numbers)]:
                raise TrainingError("E-TRAINING-CRASH", "the processes of the trainer do not begin at the same place")


ALONE: Final = Ranks()
