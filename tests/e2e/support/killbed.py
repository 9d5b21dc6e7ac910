"""Two sites whose processes are killed: one federation for many runs, and what must hold after each
of them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from tests.e2e.support.gates import Gate
from tests.e2e.support.kill_points import POOL_SIZE, Moment, Scene
from tests.e2e.support.testbed import Bed
from tests.e2e.support.witness import Witness, wait_until

__all__ = ["Who", "WHO", "KillBed", "Performance", "Tally"]

Who = Literal["daemon", "trainer", "both", "launcher"]
WHO: tuple[Who, ...] = ("daemon", "trainer", "both", "launcher")
END_SECONDS = 600.0
"""Generous: a run takes 20 s on a free machine, and several minutes on a busy one."""
SIZE = 64
"""Of the images: with it, a bundle has two blocks and a bit."""


class KillBed:
    """North and south, each behind a gate for the other; daemons stay up from run to run.

    With `pull`, nobody can call south: it waits at north, through both gates, and the launcher
    reaches it there.
    """

    settings: ClassVar[Mapping[str, str]] = {
        "epochs = 2": "epochs = 3",
        "batch_size = 64": "batch_size = 8",
        "warmup_epochs = 1": "warmup_epochs = 3",
        "pool_size = 2": f"pool_size = {POOL_SIZE}",
    }
    """Epochs of a fifth of a second or so, and enough of them to be in the middle of one."""
    samples: ClassVar = 600
    test_samples: ClassVar = 3000
    """Of each site; enough to test that evaluation takes a moment."""

    def __init__(self, bed: Bed, *, pull: bool = False) -> None:
        self.bed = bed
        self.pull = pull
        self.gates = self._make_gates()
        self.undisturbed = ""
        """The sha256 of the result where nothing dies."""
        self.bundle_bytes = 0

    def _make_gates(self) -> dict[str, Gate]:
        return {name: Gate(backwards=self.pull and name == "south") for name in self.bed.sites}

    def open(self) -> Self:
        self._write_data()
        for name in self.bed.sites if self.pull else reversed(self.bed.sites):
            self.start(name)
        addresses = {"south": f"{self.bed.sites['north'].address}/south"} if self.pull else None
        self.bed.write_file(model="mlp", size=SIZE, addresses=addresses)
        text = self.bed.file.read_text()
        for old, new in self.settings.items():
            assert old in text, old
            text = text.replace(old, new)
        for name in self.bed.sites:
            text = text.replace(
                f'data = "digits"\nindices = "parts/{name}.json"', f'data = "npz:{name}.npz"'
            )
        self.bed.file.write_text(text)
        self.simulate()
        return self

    def simulate(self) -> None:
        """What comes out where nothing dies."""
        simulated = self.bed.simulate()
        self.undisturbed, self.bundle_bytes = simulated["bundle_sha256"], simulated["bundle_bytes"]

    def start(self, name: str) -> None:
        """Start the daemon of a site, or start it again where it was."""
        site = self.bed.sites[name]
        site.start(*self._peers(name), data=f"npz:{name}.npz", listen=site.address or "127.0.0.1:0")
        self.gates[name].target = site.address
        if self.pull:
            self.gates["south"].target = self.gates["north"].address

    def _peers(self, name: str) -> list[str]:
        if not self.pull:
            return [
                f"--peer={other}={gate.address}"
                for other, gate in self.gates.items()
                if other != name
            ]
        if name == "north":
            return ["--peer=south=127.0.0.1:1/south"]
        return [f"--peer=north={self.gates['south'].address}", "--direction=pull"]

    def _write_data(self) -> None:
        """Digits as archives of large images: trainers need no scikit-learn for them, which takes a
        second to load.
        """
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = np.kron(digits.images, np.ones((SIZE // 8, SIZE // 8))) * 15
        images, labels = images.astype(np.uint8), digits.target
        tested = np.arange(self.test_samples) % len(labels)
        for number, name in enumerate(self.bed.sites):
            part = slice(number * self.samples, (number + 1) * self.samples)
            arrays = {"images": images[part], "labels": labels[part]}
            arrays |= {"test_images": images[tested], "test_labels": labels[tested]}
            np.savez(self.bed.root / f"{name}.npz", **arrays)

    def close(self) -> None:
        for gate in self.gates.values():
            gate.close()
        self.bed.close()

    @contextmanager
    def run(self, name: str) -> Iterator[Performance]:
        """A run under way, followed by a launcher."""
        performance = Performance(self, name)
        try:
            yield performance
        finally:
            performance.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """What a run's journals say of the work that was done."""

    wrong: tuple[str, ...]
    """Promises that do not hold."""
    repeated_epochs: int
    """Trained more than once: what a kill cost."""

    @classmethod
    def of(cls, witnesses: Collection[Witness]) -> Tally:
        """No step of a chain is done twice, no bundle is received twice, and nothing is missing."""
        events = [event for witness in witnesses for event in witness.events()]
        done = Counter(event.step for event in events if event.has("step", state="done"))
        received = Counter(str(event.data["edge"]) for event in events if event.kind == "received")
        epochs = Counter(
            (event.step, event.data["member"], event.data["epoch"])
            for event in events
            if event.kind == "epoch"
        )
        sites = len(witnesses)
        wrong = [f"{step} was done {count} times" for step, count in done.items() if count != 1]
        wrong += [
            f"{edge} was received {count} times" for edge, count in received.items() if count != 1
        ]
        wrong += [f"{len(done)} steps were done instead of {3 * sites}"] * (len(done) != 3 * sites)
        wrong += [f"{len(received)} edges instead of {2 * (sites - 1)}"] * (
            len(received) != 2 * (sites - 1)
        )
        return cls(wrong=tuple(wrong), repeated_epochs=sum(epochs.values()) - len(epochs))


class Performance:
    """One run: reach a moment, kill somebody, see it end."""

    def __init__(self, bed: KillBed, run: str) -> None:
        self.kill_bed, self.name = bed, run
        self._out = bed.bed.root / f"{run}.out"
        self._err = bed.bed.root / f"{run}.err"
        self._launcher: subprocess.Popen[bytes] | None = self._launch()
        self._witnesses = {name: Witness(site, run) for name, site in bed.bed.sites.items()}
        self.scene = Scene(
            witnesses=self._witnesses,
            gates=bed.gates,
            bundle_bytes=bed.bundle_bytes,
            alive=self._check_alive,
        )

    def kill(self, who: Who, moment: Moment) -> str:
        """Reach the moment, kill, and start a dead daemon again. Gives the site; empty if no such
        process is there.
        """
        moment.reach(self.scene)
        for witness in self._witnesses.values():
            witness.forget()
        site, trainers = moment.sites[0], []
        if who in ("trainer", "both"):
            having = [
                (name, found)
                for name in moment.sites
                if (found := self._witnesses[name].trainers())
            ]
            if not having:
                self.scene.let_go()
                return ""
            site, trainers = having[0]
        daemon = self.kill_bed.bed.sites[site].process
        assert daemon is not None
        if who in ("daemon", "both"):
            os.kill(daemon.pid, signal.SIGKILL)
        for trainer in trainers:
            trainer.kill()
        if who == "launcher":
            assert self._launcher is not None
            self._launcher.kill()
            self._launcher.wait()
            self._launcher = None
        self.scene.let_go()
        if who in ("daemon", "both"):
            daemon.wait(30)
            self.kill_bed.start(site)
        return "launcher" if who == "launcher" else site

    def end(self) -> dict[str, Any]:
        """What the launcher says at the end; one that was killed is not missed, and another one
        says it afterwards.
        """
        if self._launcher is None:
            wait_until(self._is_done, "end of the run without a launcher", END_SECONDS, every=0.05)
            self._launcher = self._launch()
        code = self._launcher.wait(END_SECONDS)
        assert code == 0, f"the launcher ended with {code}: {self._last_error()}"
        result: dict[str, Any] = json.loads(self._out.read_text().splitlines()[-1])
        return result

    def tally(self) -> Tally:
        return Tally.of(self._witnesses.values())

    def close(self) -> None:
        self.scene.let_go()
        if self._launcher is not None and self._launcher.poll() is None:
            self._launcher.kill()
            self._launcher.wait()

    def _launch(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fedelmy_launcher", "run", "--json", "--run", self.name]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            return subprocess.Popen(command, cwd=self.kill_bed.bed.root, stdout=out, stderr=err)

    def _check_alive(self) -> None:
        ended = self._launcher is not None and self._launcher.poll() is not None
        assert not ended, f"the run ended before the moment came: {self._last_error() or 'done'}"

    def _is_done(self) -> bool:
        states = {name: witness.state() for name, witness in self._witnesses.items()}
        assert not {"failed", "cancelled"} & set(states.values()), f"the run ended as {states}"
        return set(states.values()) == {"done"}

    def _last_error(self) -> str:
        lines = [line for line in Path(self._err).read_text().splitlines() if line.strip()]
        return " ".join(lines[-2:])
