"""Real proxies in front of nodes: the configurations of deploy/proxy/, with ports of this machine
in them.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

PROXIES = Path(__file__).parents[3] / "deploy" / "proxy"
PLACES = {"north": "10.0.0.11:50051", "south": "10.0.0.12:50051"}
"""Where the files have the nodes."""
START_SECONDS = 240.0
_MODULES = Path("/etc/nginx/modules-enabled")


class Front:
    """HAProxy or nginx on one port, which leads to several nodes by the names that connections ask
    for.
    """

    def __init__(
        self,
        kind: str,
        home: Path,
        nodes: Mapping[str, str],
        changes: Mapping[str, str] | None = None,
    ) -> None:
        self.kind, self.home = kind, home
        self.port = _free_port()
        self.log = home / f"{kind}.log"
        file = {"haproxy": "haproxy.cfg", "nginx": "nginx.conf"}[kind]
        listens = {
            "haproxy": {
                "bind :443": f"bind 127.0.0.1:{self.port}",
                "log /dev/log": "log stdout format raw",
            },
            "nginx": {"listen [::]:443;": "", "listen 443": f"listen 127.0.0.1:{self.port}"},
        }[kind]
        places = {PLACES[name]: place for name, place in nodes.items()}
        text = (PROXIES / file).read_text()
        names = {"fl-south.example": "localhost"}
        for old, new in (
            pair for some in (changes or {}, listens, places, names) for pair in some.items()
        ):
            assert old in text, f"{file} has no {old!r}"
            text = text.replace(old, new)
        self.file = home / file
        self.file.write_text(text)
        self.process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def missing(kind: str) -> bool:
        """Whether the program, or nginx's module for streams, is not installed."""
        return _program(kind) is None or (kind == "nginx" and not list(_MODULES.glob("*stream*")))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> Front:
        program = _program(self.kind)
        assert program is not None
        words = {
            "haproxy": ["-db", "-f", str(self.file)],
            "nginx": [
                "-e",
                "stderr",
                "-c",
                str(self.file),
                "-g",
                f"daemon off; master_process off; pid {self.home}/nginx.pid; error_log stderr info;",
            ],
        }[self.kind]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [program, *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                time.sleep(0.05)  # neither of them says when it listens
        raise AssertionError(f"{self.kind} does not start: {self.log.read_text()}")

    def kill(self) -> None:
        """With every connection that it holds."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()


def _program(kind: str) -> str | None:
    return shutil.which(kind, path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
