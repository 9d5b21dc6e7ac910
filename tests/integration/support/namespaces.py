"""Two network namespaces with a cable between them, for links as they are: slow, far away,
unplugged. Needs root.

The test itself stays where it is: a thread could enter a namespace, but gRPC's own threads would
not follow. So each end is a process of its own (`link_end.py`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Self

__all__ = ["Cable", "permitted"]


def permitted() -> bool:
    """Whether this machine lets us make namespaces and shape traffic."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        return False
    try:
        with Cable(rate="100mbit"):
            return True
    except (subprocess.CalledProcessError, OSError):
        return False


class Cable:
    """`north` and `south`, at 10.x.y.1 and 10.x.y.2, with a rate and a delay in each direction.

    Where the kernel has no netem there is no delay (`has_delay`), and the rate is kept by tbf.
    """

    def __init__(self, rate: str, delay: str = "0ms") -> None:
        number = os.getpid() % 65536
        self._rate, self._delay = rate, delay
        self.has_delay = False
        self._mark = f"fe{number:x}"
        self.north, self.south = f"{self._mark}n", f"{self._mark}s"
        prefix = f"10.{number >> 8}.{number & 255}"
        self.addresses = {self.north: f"{prefix}.1", self.south: f"{prefix}.2"}

    def __enter__(self) -> Self:
        try:
            for space in self.addresses:
                _run("ip", "netns", "add", space)
            _run(
                "ip",
                "link",
                "add",
                "cable",
                "netns",
                self.north,
                "type",
                "veth",
                "peer",
                "name",
                "cable",
                "netns",
                self.south,
            )
            for space, address in self.addresses.items():
                _run("ip", "-n", space, "link", "set", "lo", "up")
                _run("ip", "-n", space, "address", "add", f"{address}/24", "dev", "cable")
                _run("ip", "-n", space, "link", "set", "cable", "up")
                self._shape(space)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for space in self.addresses:  # and the cable with them
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)

    def _shape(self, space: str) -> None:
        """Rate and delay; a kernel without netem has only the rate."""
        command = ["tc", "-n", space, "qdisc", "add", "dev", "cable", "root"]
        netem = [*command, "netem", "delay", self._delay, "rate", self._rate, "limit", "1000"]
        self.has_delay = subprocess.run(netem, capture_output=True, check=False).returncode == 0
        if not self.has_delay:
            _run(*command, "tbf", "rate", self._rate, "burst", "128kb", "latency", "300ms")

    def unplug(self) -> None:
        """At the receiver's end: whatever the sender sends goes nowhere, and nobody tells it."""
        _run("ip", "-n", self.south, "link", "set", "cable", "down")

    def plug(self) -> None:
        _run("ip", "-n", self.south, "link", "set", "cable", "up")

    def inside(self, space: str, *command: str) -> list[str]:
        """A command as it is run in a namespace."""
        return ["ip", "netns", "exec", space, *command]

    def sent_bytes(self, space: str) -> int:
        """What has left this end."""
        found = _run("ip", "netns", "exec", space, "cat", "/proc/net/dev")
        line = next(line for line in found.splitlines() if line.strip().startswith("cable:"))
        return int(line.split(":")[1].split()[8])


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
