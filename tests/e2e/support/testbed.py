"""Real sites for end-to-end tests: daemons as child processes with keys, data and state of their
own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedelmy_launcher.ca import authority
from fedelmy_launcher.plans.compiler import compile_plan, load_federation
from fedelmy_launcher.simulate.simulation import Simulation, data_of
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_node.domain.names import run_id
from fedelmy_node.identity import keystore
from fedelmy_node.store.state_directory import Layout
from tests.repo import json_keys

START_SECONDS = 240.0
COMMAND_SECONDS = 600.0
"""Both are for a machine that is busy with something else."""
_LOOK_SECONDS = 0.1

TOML = """\
[federation]
name = "bed"
seed = 3
{sites}
[task]
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
input = {{ height = {size}, width = {size}, channels = 1 }}

[model]
name = "{model}"

[training]
epochs = 2
learning_rate = 3e-3
batch_size = 64
threads = 1

[strategy]
name = "fedelmy"
pool_size = 2
warmup_epochs = 1
"""


def run(
    program: str, *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Done:
    """A command of ours, as a person would call it."""
    done = subprocess.run(
        [sys.executable, "-m", program, *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    if "--json" in arguments and done.returncode == 0 and "PYTHONPATH" not in (env or {}):
        json_keys.check(program, arguments, done.stdout)
    return Done(done.returncode, done.stdout, done.stderr)


def using(software: Path | None) -> dict[str, str]:
    """The environment of a process that runs the fedelmy installed there; None: this tree's."""
    return {"PYTHONPATH": str(software)} if software else {}


class Done:
    """What a command printed and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        """The last line, which is the result."""
        return json.loads(self.out.splitlines()[-1])

    def ok(self) -> Done:
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}"
        return self

    def failed(self, code: str, exit_code: int) -> Done:
        assert self.code == exit_code, f"exit code {self.code}\n{self.out}\n{self.err}"
        assert code in self.err, self.err
        assert "Traceback" not in self.err, self.err
        return self


class Site:
    """One site: its directory, and its daemon while it runs."""

    def __init__(self, bed: Bed, name: str) -> None:
        self.bed, self.name = bed, name
        self.state = bed.root / "sites" / name
        self.address = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.software: Path | None = None
        """Where another version of fedelmy is installed, if this site runs that one."""
        self.log = bed.root / f"{name}.log"

    @property
    def env(self) -> dict[str, str]:
        return using(self.software)

    def node(self, *arguments: str) -> Done:
        return run(
            "fedelmy_node", *arguments, "--state", str(self.state), cwd=self.bed.root, env=self.env
        )

    def start(self, *arguments: str, data: str = "digits", listen: str = "127.0.0.1:0") -> Site:
        path = self.state / "ready.sock"
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, self.log.open("ab") as log:
            ready.bind(str(path))
            ready.settimeout(_LOOK_SECONDS)
            command = [
                "serve",
                "--listen",
                listen,
                "--state",
                str(self.state),
                "--data",
                data,
                *arguments,
            ]
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedelmy_node", *command],
                cwd=self.bed.root,
                env={**os.environ, **self.env, "NOTIFY_SOCKET": str(path)},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
            self.bed.processes.append(self.process)
            message = self._wait_ready(ready)
        path.unlink()
        self.address = dict(line.split("=", 1) for line in message.splitlines())[
            "X_FEDELMY_ADDRESS"
        ]
        return self

    def _wait_ready(self, ready: socket.socket) -> str:
        """What the daemon says when it is; one that has ended is not waited for."""
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            try:
                return ready.recv(4096).decode()
            except TimeoutError:
                if ended:
                    break
        raise AssertionError(f"{self.name} did not start: {self.log.read_text()}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(START_SECONDS)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)


class Bed:
    """A federation on this machine."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root = root
        self.ca = root / "federation-ca"
        self.file = root / "federation.toml"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.sites = {name: Site(self, name) for name in names}

    def provision(self, *, by_commands: bool = False) -> None:
        """What operator and sites do once: in process, as each command takes a while."""
        if by_commands:
            self._provision_by_commands()
            return
        authority.init(self.ca)
        for site in self.sites.values():
            home = Layout(site.state).identity
            keystore.init(home, site.name, "site")
            request, signed = home / "request.csr", self.root / f"{site.name}.pem"
            keystore.install(home, authority.sign(self.ca, request, signed).path)

    def _provision_by_commands(self) -> None:
        run("fedelmy_launcher", "ca", "init", cwd=self.root).ok()
        for site in self.sites.values():
            site.node("identity", "init", "--site", site.name).ok()
            request, signed = Layout(site.state).identity / "request.csr", f"{site.name}.pem"
            self.launch("ca", "sign", str(request), "--out", signed, "--yes").ok()
            site.node("identity", "install", signed).ok()

    def partition(self) -> None:
        names = [argument for name in self.sites for argument in ("--site", name)]
        run("fedelmy_launcher", "partition", "digits", *names, "--seed", "1", cwd=self.root).ok()

    def start_chain(self) -> None:
        """From the last to the first, each with the next as its peer."""
        following = ""
        for name, site in reversed(self.sites.items()):
            peer = ["--peer", following] if following else []
            following = site.start("--indices", f"parts/{name}.json", *peer).address

    def write_file(
        self, model: str = "mlp", size: int = 8, addresses: Mapping[str, str] | None = None
    ) -> None:
        tables = "".join(
            f'\n[[sites]]\nname = "{name}"\naddress = "{(addresses or {}).get(name, site.address or "127.0.0.1:1")}"\n'
            f'data = "digits"\nindices = "parts/{name}.json"\n'
            for name, site in self.sites.items()
        )
        self.file.write_text(TOML.format(sites=tables, model=model, size=size))

    def launch(self, *arguments: str, software: Path | None = None) -> Done:
        """A command of the operator's, of another version of fedelmy if that is installed at
        `software`.
        """
        return run("fedelmy_launcher", *arguments, cwd=self.root, env=using(software))

    def simulate(self, without: Collection[str] = ()) -> dict[str, Any]:
        """The result of the federation file where nothing goes wrong, perhaps without some sites.

        In this process: a command would load torch again (`test_chain.py` has the command).
        """
        described = load_federation(self.file)
        kept = tuple(member for member in described.members if member.name not in without)
        plan = compile_plan(replace(described, members=kept), run_id("simulated"))
        progress = RunProgress(plan)
        with contextlib.chdir(self.root), tempfile.TemporaryDirectory() as directory:
            Simulation(plan, data_of(described), Path(directory), progress.add).run()
        return progress.result()

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def launched(bed: Bed, run: str, software: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A launcher, perhaps of another version, that follows a run; killed at the end, which harms no
    run.
    """
    launcher = subprocess.Popen(
        [sys.executable, "-m", "fedelmy_launcher", "run", "--json", "--run", run],
        cwd=bed.root,
        env={**os.environ, **using(software)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield launcher
    finally:
        launcher.kill()
        launcher.communicate()
