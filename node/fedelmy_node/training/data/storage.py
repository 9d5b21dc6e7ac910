"""Where samples stay: in memory while they fit, else in a file of this process, mapped into its memory.

A mapped tensor is used like any other, so training computes the same bytes; the system keeps of it what it has room
for. The file has no name: nobody else can open it, and it goes with the process, however that ends. Its blocks are
reserved before the first one is written: a full disk is an error here, not a signal later.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from fedelmy_node.durable import cannot_write

__all__ = ["Storage", "available_bytes"]

logger = logging.getLogger(__name__)

_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")


@dataclass(slots=True)
class Storage:
    """Gives tensors for samples; what it has given in memory counts against the limit."""

    spill: Path | None = None
    """A directory on a local disk; None: everything stays in memory."""
    memory_bytes: int | None = None
    """For all samples together; None: half of what the machine has available now."""
    on_disk: int = field(default=0, init=False)
    """Bytes that went into files."""
    _in_memory: int = field(default=0, init=False)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor without values; E-STORE-DISK if it has to be a file and the disk is full."""
        size = math.prod(shape) * dtype.itemsize
        if self.spill is None or size == 0 or self._in_memory + size <= self._limit():
            self._in_memory += size
            return torch.empty(tuple(shape), dtype=dtype)
        self.on_disk += size
        logger.info("%d MiB of samples do not fit into memory and are held on disk", size >> 20)
        return torch.frombuffer(_mapped(self.spill, size), dtype=dtype).view(tuple(shape))

    def _limit(self) -> int:
        if self.memory_bytes is None:
            self.memory_bytes = available_bytes() // 2
        return self.memory_bytes


def available_bytes() -> int:
    """What this process could still use without others being swapped out, within its container's limit."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text("ascii").splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
        limit, used = ((_CGROUP / f"memory.{name}").read_text("ascii").strip() for name in ("max", "current"))
        found.append(max(0, int(limit) - int(used)))
    except (OSError, ValueError, KeyError):
        pass  # another system, or no limit: what was found so far counts
    return min(found)


def _mapped(directory: Path, size: int) -> mmap.mmap:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise cannot_write(directory, error) from error
