"""Two network namespaces with a cable between them, for links as they are: slow, far away, unplugged. Needs root.

The test itself stays where it is. A thread that enters a namespace makes its sockets there, and gRPC's own threads do
not, so each end is a process: `python -m ... ` started with `ip netns exec`.
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
    """`north` and `south`, at 10.x.y.1 and 10.x.y.2, with a rate and a delay in each direction."""

    def __init__(self, rate: str, delay: str = "0ms") -> None:
        number = os.getpid() % 65536
        self._rate, self._delay = rate, delay
        self._mark = f"fe{number:x}"
        self.north, self.south = f"{self._mark}n", f"{self._mark}s"
        prefix = f"10.{number >> 8}.{number & 255}"
        self.addresses = {self.north: f"{prefix}.1", self.south: f"{prefix}.2"}

    def __enter__(self) -> Self:
        try:
            for space in self.addresses:
                _run("ip", "netns", "add", space)
            _run("ip", "link", "add", "cable", "netns", self.north, "type", "veth",
                 "peer", "name", "cable", "netns", self.south)  # fmt: skip
            for space, address in self.addresses.items():
                _run("ip", "-n", space, "link", "set", "lo", "up")
                _run("ip", "-n", space, "address", "add", f"{address}/24", "dev", "cable")
                _run("ip", "-n", space, "link", "set", "cable", "up")
                _run("tc", "-n", space, "qdisc", "add", "dev", "cable", "root", "netem",
                     "delay", self._delay, "rate", self._rate, "limit", "1000")  # fmt: skip
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for space in self.addresses:  # and the cable with them
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)

    def unplug(self) -> None:
        """Packets go nowhere; nobody is told. (`link set down` would take the addresses' routes along.)"""
        for space in self.addresses:
            _run("tc", "-n", space, "qdisc", "change", "dev", "cable", "root", "netem", "loss", "100%")

    def plug(self) -> None:
        for space in self.addresses:
            _run("tc", "-n", space, "qdisc", "change", "dev", "cable", "root", "netem",
                 "delay", self._delay, "rate", self._rate, "limit", "1000", "loss", "0%")  # fmt: skip

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
