"""The demo: four real sites on this machine, each a daemon with its own key, data and state."""

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

from fedelmy_launcher.ca import authority
from fedelmy_launcher.simulate.partition import write_partition
from fedelmy_node.child_process import import_environment, python
from fedelmy_node.domain.errors import ConfigError, InternalError, StoreError
from fedelmy_node.domain.names import Address

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
# Sites lack classes: correct the loss for it, and keep what the received model knows of them.
loss = "prior_corrected"
distil_absent = 1.0

[strategy]
name = "fedelmy"
pool_size = 3
warmup_epochs = 5
"""


@dataclass(frozen=True, slots=True)
class DemoSite:
    """One site of the demo."""

    name: str
    state: Path
    indices: Path

    def command(self, *arguments: str) -> list[str]:
        """A `fedelmy-node` command of this site, run by this Python."""
        return python("fedelmy_node", *arguments, "--state", str(self.state))


class DemoFederation:
    """Directories, keys, certificates and shards of the demo."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.seed = seed
        self.operator = directory / "federation-ca" / "operator"
        self.file = directory / "federation.toml"
        self.sites = [
            DemoSite(name, directory / "sites" / name, directory / "parts" / f"{name}.json")
            for name in SITES
        ]

    def make(self) -> None:
        """Create the CA, the sites' identities, and Dirichlet(0.5) shards of the digits."""
        ca = self.directory / "federation-ca"
        authority.init(ca)
        with ThreadPoolExecutor(len(self.sites)) as pool:
            commands = [
                site.command("identity", "init", "--site", site.name) for site in self.sites
            ]
            list(pool.map(_run, commands))
        for site in self.sites:
            signed = site.state / "identity" / "signed.pem"
            authority.sign(ca, site.state / "identity" / "request.csr", signed)
            _run(site.command("identity", "install", str(signed)))
        out = self.directory / "parts"
        write_partition("digits", SITES, method="dirichlet", seed=self.seed, out_dir=out)

    def write_file(self, addresses: dict[str, Address]) -> None:
        """Write federation.toml, once the sites' ports are known."""
        tables = "".join(
            f'[[sites]]\nname = "{site.name}"\naddress = "{addresses[site.name]}"\n'
            f'data = "digits"\nindices = "parts/{site.name}.json"\n\n'
            for site in self.sites
        )
        text = _FEDERATION.format(seed=self.seed, sites=tables)
        self.file.write_text(text, "utf-8")


class Daemons:
    """The nodes of the demo as child processes; leaving the context stops them."""

    def __init__(self, federation: DemoFederation) -> None:
        self._federation = federation
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
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
        """Start from the last site to the first, because each needs the address of the next."""
        addresses: dict[str, Address] = {}
        following: Address | None = None
        for site in reversed(self._federation.sites):
            peer = ("--peer", following) if following else ()
            following = self._start(site, *peer)
            addresses[site.name] = following
        return addresses

    def _start(self, site: DemoSite, *arguments: str) -> Address:
        options = ("--listen", "127.0.0.1:0", "--data", "digits", "--indices", str(site.indices))
        command = site.command("serve", *options, *arguments)
        log = site.state / "node.log"
        with _notification_socket() as (path, notified), log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | import_environment() | {"NOTIFY_SOCKET": str(path)},
                cwd=site.state,
                start_new_session=True,  # Ctrl-C is for the launcher
            )
            self._processes.append(process)
            message = _first_message(notified, process)
        if message is None:
            text = f"the node of {site.name} did not start:\n{log.read_text()}"
            raise InternalError("E-INTERNAL", text)
        values = dict(line.split("=", 1) for line in message.splitlines())
        return Address(values["X_FEDELMY_ADDRESS"])


def _first_message(notified: socket.socket, process: subprocess.Popen[bytes]) -> str | None:
    """A daemon's message that it is ready; None if it exits before that."""

    def wake_at_exit() -> None:
        process.wait()
        with contextlib.suppress(OSError):  # usually the socket is closed by then
            notified.shutdown(socket.SHUT_RD)

    threading.Thread(target=wake_at_exit, daemon=True).start()
    return notified.recv(4096).decode() or None


def prepare_directory(directory: Path) -> bool:
    """Create an empty directory; return True if it replaced an earlier demo."""
    replaced = directory.exists()
    if replaced:
        if not (directory / _MARK).exists() and any(directory.iterdir()):
            message = f"{directory} exists and is not an earlier demo"
            hint = "Choose another directory with --dir."
            raise ConfigError("E-CONFIG-VALUE", message, hint=hint)
        shutil.rmtree(directory)
    try:
        directory.mkdir(parents=True)
        (directory / _MARK).touch()
    except OSError as error:
        message = f"cannot create {directory}: {error.strerror}"
        raise StoreError("E-STORE-UNWRITABLE", message) from error
    return replaced


@contextmanager
def _notification_socket() -> Iterator[tuple[Path, socket.socket]]:
    """A socket for a daemon's readiness, as for systemd; its path must be short."""
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
