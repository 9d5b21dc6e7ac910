"""State directories of a real federation, taken in mid-run with every daemon killed: what bits are
flipped in.

One run, north -> south and the result back, is stopped three times: while a bundle is handed over,
while the second site trains, and when it is done.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedelmy_launcher.ca import authority
from fedelmy_node.domain.names import file_stem
from fedelmy_node.identity import keystore
from tests.e2e.support.flip_reads import Place, settle
from tests.e2e.support.gates import Gate
from tests.e2e.support.kill_points import POOL_SIZE, TRAIN_SOUTH, MissedError
from tests.e2e.support.killbed import KillBed, Performance
from tests.e2e.support.testbed import Bed
from tests.e2e.support.witness import Witness, wait_until

__all__ = ["SITES", "KINDS", "UNREAD", "FlipBed", "Kind", "Snapshot", "copy_state", "strangers"]

SITES = ("north", "south")
_HELD_BYTES = 1_300_000
"""Of a bundle of two blocks and a bit: the first is whole, the second is under way."""
_BLOCK_BYTES = 1 << 20
_TRIES = 5
"""A moment that was over before it was noticed is looked for again, in another run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Files of one kind, and the moment and site at which they are there."""

    moment: str
    site: str
    files: tuple[str, ...]
    """Patterns below the state directory; RUN is the directory of the run."""
    open: bool = False
    """Whether the journal's log must be beside it; otherwise it was closed in good order, and
    nothing hides it.
    """
    played: bool = True
    """Whether runs are worth their time: SQLite makes the index of its log anew whenever a journal
    is opened.
    """

    def paths(self, snapshot: Snapshot) -> list[Path]:
        """The files of this kind."""
        root, run = snapshot.state(self.site), file_stem(snapshot.run)
        return sorted(
            path for pattern in self.files for path in root.glob(pattern.replace("RUN", run))
        )


KINDS: Mapping[str, Kind] = {
    "journal": Kind(moment="training", site="south", files=("journal.db",)),
    "wal": Kind(moment="training", site="south", files=("journal.db-wal",), open=True),
    "shm": Kind(
        moment="training", site="south", files=("journal.db-shm",), open=True, played=False
    ),
    "inputs": Kind(moment="training", site="south", files=("runs/RUN/inputs/*.safetensors",)),
    "outputs": Kind(
        moment="handing-over", site="north", files=("runs/RUN/steps/*/output.safetensors",)
    ),
    "parts": Kind(moment="handing-over", site="south", files=("runs/RUN/inputs/*.part",)),
    "checkpoints": Kind(moment="training", site="south", files=("runs/RUN/steps/*/checkpoints/*",)),
    "identity": Kind(moment="training", site="south", files=("identity/*",)),
    "audit": Kind(moment="training", site="south", files=("audit*.jsonl", "audit.head")),
    "results": Kind(
        moment="done",
        site="north",
        files=("runs/RUN/inputs/*.safetensors", "runs/RUN/steps/*/output.safetensors"),
    ),
}
"""Every kind of file that is read back. There is none for jobs: they cross a pipe and are never on
the disk.
"""

UNREAD = ("lock", "journal.open", "details.log", "trainer.lock", "trainer.log")
"""Names of files that are empty, or read back only by people."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state directories of all sites at one moment."""

    root: Path
    run: str

    def state(self, site: str) -> Path:
        return self.root / site

    def of(self, kind: Kind) -> Snapshot:
        """The one to flip bits of this kind in."""
        return (
            self
            if kind.open
            else Snapshot(self.root.with_name(f"{self.root.name}-closed"), self.run)
        )


class FlipBed(KillBed):
    """North and south with little to train; `take` makes the snapshots, after which no daemon runs."""

    settings: ClassVar[Mapping[str, str]] = {
        "epochs = 2": "epochs = 6",
        "batch_size = 64": "batch_size = 8",
        "pool_size = 2": f"pool_size = {POOL_SIZE}",
    }
    samples: ClassVar = 200
    test_samples: ClassVar = 60

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        super().__init__(Bed(root, SITES))
        self.root = root
        self.snapshots: dict[str, Snapshot] = {}

    def provision(self) -> None:
        """Keys and certificates, and a list that revokes a third one."""
        ca, ghost = self.bed.ca, self.root / "ghost"
        self.bed.provision()
        keystore.init(ghost, "ghost", "site")
        authority.sign(ca, ghost / "request.csr", self.root / "ghost.pem")
        revoked = authority.revoke(ca, "ghost").path
        for name in SITES:
            keystore.install_lists(
                self.bed.sites[name].state / "identity", revoked.read_bytes(), str(revoked)
            )

    def simulate(self) -> None:
        """Not before somebody wants to know: it takes as long as a run."""

    def know_result(self) -> None:
        super().simulate()

    def take(self) -> None:
        """All snapshots, of one run."""
        self.provision()
        self.open()
        for _ in range(_TRIES):
            try:
                with self.run(f"flip-{secrets.token_hex(3)}") as run:
                    for moment, reach in (
                        ("handing-over", _hand_over),
                        ("training", _train),
                        ("done", _end),
                    ):
                        reach(run)
                        self._snap(moment, run.name)
                        if moment != "done":
                            self.start_all()
                return
            except MissedError:
                self.kill_all()
                for site in self.bed.sites.values():
                    forget_all(site.state)
                self.start_all()
        raise AssertionError(f"a moment was missed {_TRIES} times")

    def start_all(self) -> None:
        for name in reversed(SITES):
            self.start(name)

    def kill_all(self) -> None:
        """Every daemon at once, and trainers that are stopped and so cannot notice."""
        daemons = [
            site.process
            for site in self.bed.sites.values()
            if site.process and site.process.poll() is None
        ]
        trainers = (
            [trainer for name in SITES for trainer in self.witness(name).trainers()]
            if daemons
            else []
        )
        for daemon in daemons:
            daemon.send_signal(signal.SIGKILL)
        for trainer in trainers:
            trainer.kill()
        for daemon in daemons:
            daemon.wait(30)
        for gate in self.gates.values():
            gate.release()
        wait_until(
            lambda: not any(Path(f"/proc/{trainer.pid}").exists() for trainer in trainers),
            "end of the trainers",
        )

    def witness(self, site: str, run: str = "") -> Witness:
        return Witness(self.bed.sites[site], run)

    def _snap(self, moment: str, run: str) -> None:
        self.kill_all()
        taken = Snapshot(self.root / "snapshots" / moment, run)
        shutil.rmtree(taken.root, ignore_errors=True)
        for name, site in self.bed.sites.items():
            copy_state(site.state, taken.state(name))
        self.snapshots[moment] = taken
        closed = self.root / "snapshots" / f"{moment}-closed"
        shutil.rmtree(closed, ignore_errors=True)
        shutil.copytree(taken.root, closed)
        for name in SITES:
            settle(Place(closed, name, self.root))

    def snapshot(self, kind: str) -> Snapshot:
        """The one to flip bits of this kind in."""
        return self.snapshots[KINDS[kind].moment].of(KINDS[kind])


def forget_all(state: Path) -> None:
    """All that a site has, but for its identity."""
    for path in state.iterdir():
        if path.is_dir() and path.name != "identity":
            shutil.rmtree(path)
        elif not path.is_dir():
            path.unlink()


def copy_state(source: Path, target: Path) -> None:
    """A state directory without its sockets."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.sock"))


def strangers(root: Path) -> Iterator[Path]:
    """Files of a state directory that are of no kind: nobody has said what a flipped bit does to
    them.
    """
    known = {
        path
        for kind in KINDS.values()
        for pattern in kind.files
        for path in root.glob(pattern.replace("RUN", "*"))
    }
    for path in sorted(root.rglob("*")):
        if path.is_file() and path not in known and path.name not in UNREAD:
            yield path


def _hand_over(run: Performance) -> None:
    """North has trained; a block of its bundle is whole at south, the next is under way."""
    gate: Gate = run.scene.gates["south"]
    gate.hold_bytes(at=_HELD_BYTES)
    run.scene.wait("north", "step", "train.1@north", state="done")
    run.scene.wait_held("south")
    inputs = run.kill_bed.bed.sites["south"].state / "runs"
    wait_until(
        lambda: any(part.stat().st_size >= _BLOCK_BYTES for part in inputs.rglob("*.part")),
        "partial bundle",
    )
    run.scene.not_yet("south", "received")


def _train(run: Performance) -> None:
    """South is in its second fit: a result and two checkpoints are on the disk, with tensors of the
    fit under way.
    """
    directory = run.scene.witnesses["south"].step_directory(TRAIN_SOUTH) / "checkpoints"

    def is_there() -> bool:
        names = [path.name for path in directory.glob("*[!l]")]
        newest = {name.partition(".")[0] for name in names if name.endswith(".json")}
        tensors = {name.partition(".")[0] for name in names if name.endswith(".safetensors")}
        return "fit-000" in tensors and len(newest) == 2 and newest <= tensors

    def look() -> bool:
        run.scene.alive()
        if run.scene.witnesses["south"].find("step", TRAIN_SOUTH, state="done"):
            raise MissedError("the step was done before it was noticed")
        return is_there()

    wait_until(look, "checkpoints")
    run.scene.stop_trainer("south", TRAIN_SOUTH)
    time.sleep(0.1)
    if not is_there():
        raise MissedError("the checkpoints were replaced before the trainer could be stopped")
    run.scene.stopped.clear()  # killed with its daemon


def _end(run: Performance) -> None:
    run.end()
