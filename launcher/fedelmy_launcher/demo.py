"""The demo: four real sites on this machine, each a daemon with its own key, data and state, and one run over mTLS."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from fedelmy_launcher import authority
from fedelmy_launcher.partition import write_partition
from fedelmy_node.children import import_environment, python
from fedelmy_node.domain.names import Address
from fedelmy_node.errors import ConfigError, InternalError, StoreError

__all__ = ["SITES", "DemoSite", "DemoFederation", "Daemons", "prepare_directory"]

SITES: Final = ("north", "east", "south", "west")
_MARK: Final = ".fedelmy-demo"
_STOP_SECONDS: Final = 15.0
_FEDERATION: Final = """\
# Written by `fedelmy-launch demo`.
[federation]
name = "demo"
seed = {seed}

{sites}
[task]
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
input = {{ height = 8, width = 8, channels = 1, mean = [0.3], std = [0.38] }}

[model]
name = "mlp"

[training]
epochs = 8
learning_rate = 3e-3
batch_size = 32
threads = 1

[strategy]
name = "fedelmy"
pool_size = 3
warmup_epochs = 5
alpha = 0.06
beta = 1.0
"""


@dataclass(frozen=True, slots=True)
class DemoSite:
    """One site of the demo on disk."""

    name: str
    state: Path
    indices: Path

    def command(self, *arguments: str) -> list[str]:
        """A `fedelmy-node` command of this site, with this very Python."""
        return python("fedelmy_node", *arguments, "--state", str(self.state))


class DemoFederation:
    """Directories, keys, certificates and shards of the demo; every site makes its own key."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.seed = seed
        self.operator = directory / "federation-ca" / "operator"
        self.file = directory / "federation.toml"
        self.sites = [
            DemoSite(name, directory / "sites" / name, directory / "parts" / f"{name}.json") for name in SITES
        ]

    def make(self) -> None:
        """The CA, the sites' keys and certificates, and Dirichlet(0.5) shards of the digits."""
        ca = self.directory / "federation-ca"
        authority.init(ca)
        with ThreadPoolExecutor(len(self.sites)) as pool:
            list(pool.map(lambda site: _run(site.command("identity", "init", "--site", site.name)), self.sites))
        for site in self.sites:
            signed = site.state / "identity" / "signed.pem"
            authority.sign(ca, site.state / "identity" / "request.csr", signed)
            _run(site.command("identity", "install", str(signed)))
        write_partition(
            "digits", SITES, method="dirichlet", alpha=0.5, seed=self.seed, out_dir=self.directory / "parts"
        )

    def write_file(self, addresses: dict[str, Address]) -> None:
        """federation.toml, once the sites' ports are known."""
        tables = "".join(
            f'[[sites]]\nname = "{site.name}"\naddress = "{addresses[site.name]}"\n'
            f'data = "digits"\nindices = "parts/{site.name}.json"\n\n'
            for site in self.sites
        )
        text = _FEDERATION.format(seed=self.seed, sites=tables)
        self.file.write_text(text, "utf-8")


class Daemons:
    """The nodes of the demo as child processes; leaving the context ends them, however it is left."""

    def __init__(self, federation: DemoFederation) -> None:
        self._federation = federation
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self) -> dict[str, Address]:
        """From the last site to the first, because each is told where the next one listens."""
        addresses: dict[str, Address] = {}
        following: Address | None = None
        for site in reversed(self._federation.sites):
            peer = ("--peer", following) if following else ()
            following = self._start(site, *peer)
            addresses[site.name] = following
        return addresses

    def _start(self, site: DemoSite, *arguments: str) -> Address:
        command = site.command(
            "serve", "--listen", "127.0.0.1:0", "--data", "digits", "--indices", str(site.indices), *arguments
        )
        log = site.state / "node.log"
        with _notification_socket() as (path, notified), log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | import_environment() | {"NOTIFY_SOCKET": str(path)},
                cwd=site.state,
                start_new_session=True,  # Ctrl-C is for the launcher, which then ends them in order
            )
            self._processes.append(process)
            message = _first_message(notified, process)
        if message is None:
            raise InternalError("E-INTERNAL", f"the node of {site.name} did not start:\n{log.read_text()}")
        return Address(dict(line.split("=", 1) for line in message.splitlines())["X_FEDELMY_ADDRESS"])


def _first_message(notified: socket.socket, process: subprocess.Popen[bytes]) -> str | None:
    """What a daemon says when it is ready; None if it ends before that."""

    def wake_at_its_end() -> None:
        process.wait()
        with contextlib.suppress(OSError):  # by then, usually, nobody waits any more
            notified.shutdown(socket.SHUT_RD)

    threading.Thread(target=wake_at_its_end, daemon=True).start()
    return notified.recv(4096).decode() or None


def prepare_directory(directory: Path) -> bool:
    """An empty directory for the demo; an earlier demo is replaced (then True), anything else is left alone."""
    replaced = directory.exists()
    if replaced:
        if not (directory / _MARK).exists() and any(directory.iterdir()):
            raise ConfigError(
                "E-CONFIG-VALUE",
                f"{directory} exists and is not an earlier demo",
                hint="Choose another directory with --dir.",
            )
        shutil.rmtree(directory)
    try:
        directory.mkdir(parents=True)
        (directory / _MARK).touch()
    except OSError as error:
        raise StoreError("E-STORE-UNWRITABLE", f"cannot make {directory}: {error.strerror}") from error
    return replaced


@contextmanager
def _notification_socket() -> Iterator[tuple[Path, socket.socket]]:
    """Where a daemon says that it is ready, as to systemd; in a directory whose name is short enough."""
    with (
        tempfile.TemporaryDirectory(prefix="fedelmy-") as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified,
    ):
        path = Path(directory) / "ready"
        notified.bind(str(path))
        yield path, notified


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InternalError("E-INTERNAL", f"{' '.join(command[3:])} failed: {done.stderr.strip()}")
