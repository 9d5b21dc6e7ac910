"""Several processes that train one step together, each with its part of every batch.

All processes run the same strategy on the same model. After every batch the gradients are summed;
each process then computes distances, optimizer step and epoch selection from equal numbers.
Buffers, such as BatchNorm's statistics, are those of the first process, broadcast before each
validation. Only the first process writes and reports.

The processes meet through a file and communicate over the loopback device (gloo) or between GPUs
(NCCL): nothing listens on the network. There is no timeout: the first process notices a lost one by
its pipe, as the daemon does (`Team`). If one process ends early, all end, and the daemon resumes
from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, Final

import torch
from torch import Tensor

from fedelmy_node.child_process import python
from fedelmy_node.config.decode import canonical_json, encode
from fedelmy_node.domain.errors import TrainingError
from fedelmy_node.training.data.samples import Samples
from fedelmy_node.training.job import Input, Job
from fedelmy_node.training.weights import FlatModel

_NO_TIMEOUT: Final = timedelta(days=30)
"""torch requires a timeout; this is longer than any step."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's rank; with one process all methods are no-ops."""

    number: int = 0
    """0 is the process that the daemon started."""
    count: int = 1

    @property
    def first(self) -> bool:
        return self.number == 0

    @property
    def seed(self) -> tuple[int, ...]:
        """Added to seeds, so that augmentation and dropout differ between processes."""
        return (self.number,) if self.number else ()

    def join(self, meeting: Path, device: torch.device) -> None:
        """Connect to the other processes; the file must not exist before."""
        if self.count == 1:
            return
        from torch import distributed  # takes a second to import

        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback
        distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=distributed.FileStore(str(meeting), self.count),  # type: ignore[attr-defined]
            rank=self.number,
            world_size=self.count,
            timeout=_NO_TIMEOUT,
        )

    def device(self, device: torch.device) -> torch.device:
        """This process's own device: GPUs are counted from the configured one."""
        if self.count == 1 or device.type != "cuda":
            return device
        return torch.device("cuda", (device.index or 0) + self.number)

    def own(self, chosen: Tensor) -> Tensor:
        """This process's part of a batch; may be empty."""
        return chosen if self.count == 1 else chosen[self.number :: self.count]

    def share(self, samples: Samples) -> Samples:
        """This process's part of the validation samples."""
        if self.count == 1:
            return samples
        begin, end = (len(samples) * rank // self.count for rank in (self.number, self.number + 1))
        return samples.part(begin, end)

    def add_up(self, *tensors: Tensor) -> None:
        """Replace each tensor by the sum over all processes."""
        if self.count > 1:
            from torch import distributed

            for tensor in tensors:
                distributed.all_reduce(tensor)

    def agree(self, model: FlatModel) -> None:
        """Broadcast the first process's values."""
        if self.count > 1:
            from torch import distributed

            for tensor in (model.theta, *model.rest.values()):
                distributed.broadcast(tensor, 0)

    def require_equal(self, numbers: Sequence[int], device: torch.device) -> None:
        """E-TRAINING-CRASH unless all processes pass the same numbers: they would deadlock."""
        if self.count > 1:
            from torch import distributed

            both = [*numbers, *(-number for number in numbers)]
            largest = torch.tensor(both, device=device)
            distributed.all_reduce(largest, distributed.ReduceOp.MAX)
            if largest.tolist() != both:
                message = "the processes of the trainer resume from different checkpoints"
                raise TrainingError("E-TRAINING-CRASH", message)


ALONE: Final = Ranks()


def rendezvous_file(job: Job) -> Path:
    """The file through which the processes of a job connect."""
    assert job.output is not None, "a train step has an output"
    return job.output.with_name("processes")


class Team:
    """The other processes of a trainer, started and watched by the first one."""

    def __init__(
        self, job: Job, about: str, failed: Callable[[Mapping[str, Any] | None], None]
    ) -> None:
        """`failed` is called on a thread with a process's error, or None if it just exited."""
        self._failed = failed
        self._members: list[subprocess.Popen[bytes]] = []
        self._watchers: list[threading.Thread] = []
        rendezvous_file(job).unlink(missing_ok=True)
        for number in range(1, job.processes):
            self._start(number, about)
        self._send({"job": json.loads(canonical_json(job))})

    def go(self, inputs: Sequence[Input]) -> None:
        """Send the inputs."""
        self._send({"go": {"inputs": encode(inputs)}})

    def await_loss(self, seconds: float) -> None:
        """Give the watchers time to report that a process has exited."""
        deadline = time.monotonic() + seconds
        for watcher in self._watchers:
            watcher.join(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Kill the processes."""
        self._failed = lambda _: None
        for member in self._members:
            member.kill()
            member.wait()

    def _start(self, number: int, about: str) -> None:
        reading, writing = os.pipe()
        options = ("--events-fd", str(writing), "--rank", str(number))
        command = python(
            "fedelmy_node.training.trainer", *options, "--about", f"{about} process {number}"
        )
        try:
            member = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(writing,))
        finally:
            os.close(writing)
        self._members.append(member)
        events, name = os.fdopen(reading, "rb"), f"process-{number}"
        self._watchers.append(
            threading.Thread(target=self._watch, args=(events,), name=name, daemon=True)
        )
        self._watchers[-1].start()

    def _send(self, message: Mapping[str, Any]) -> None:
        for member in self._members:
            assert member.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # `_watch` reports that it has exited
                member.stdin.write(json.dumps(message).encode() + b"\n")
                member.stdin.flush()

    def _watch(self, events: IO[bytes]) -> None:
        with events:
            for line in events:
                message = json.loads(line)
                if "error" in message:
                    self._failed(message["error"])
                if "done" in message:
                    return
        self._failed(None)
