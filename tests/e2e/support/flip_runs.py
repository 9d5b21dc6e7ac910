"""A run that goes on from a snapshot with real daemons, one of whose files has a flipped bit."""

from __future__ import annotations

import hashlib
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Literal, TypedDict

from fedelmy_node.domain.errors import CATALOGUE
from fedelmy_node.domain.names import file_stem
from tests.e2e.support.flipbed import KINDS, SITES, FlipBed, Snapshot, copy_state
from tests.e2e.support.witness import wait_until

__all__ = ["Stage", "End"]

_END_SECONDS = 600.0
"""Generous: what is left of a run takes 10 s on a free machine."""
_SAID = re.compile(r"error (E-[A-Z-]+):")


class End(TypedDict):
    """How it ended."""

    verdict: Literal["same", "refused", "WRONG"]
    why: str


class Stage:
    """Plays the rest of a run again and again, in one bed."""

    def __init__(self, bed: FlipBed) -> None:
        self._bed = bed
        bed.know_result()

    def play(self, kind: str, flip: Callable[[Path], None]) -> End:
        """From the snapshot of this kind, flipped, to the end of the run."""
        snapshot, site = self._bed.snapshot(kind), KINDS[kind].site
        self._restore(snapshot)
        flip(self._bed.bed.sites[site].state)
        for one in self._bed.bed.sites.values():
            one.log.unlink(missing_ok=True)
        try:
            return (
                self._export(snapshot, site)
                if KINDS[kind].moment == "done"
                else self._run(snapshot)
            )
        except AssertionError as error:
            return End(verdict="WRONG", why=str(error))
        finally:
            self._bed.kill_all()

    def _restore(self, snapshot: Snapshot) -> None:
        self._bed.kill_all()
        for name, site in self._bed.bed.sites.items():
            shutil.rmtree(site.state)
            copy_state(snapshot.state(name), site.state)

    def _start(self) -> End | None:
        """Both daemons; the refusal of one that does not start."""
        for name in reversed(SITES):
            try:
                self._bed.start(name)
            except AssertionError:
                return self._ended(name)
        return None

    def _run(self, snapshot: Snapshot) -> End:
        return self._start() or wait_until(
            lambda: self._look(snapshot), "end of the run", _END_SECONDS, every=0.05
        )

    def _look(self, snapshot: Snapshot) -> End | None:
        """How it ended; None: not yet."""
        states = {name: self._bed.witness(name, snapshot.run).state() for name in SITES}
        for name, site in self._bed.bed.sites.items():
            if site.process is not None and site.process.poll() is not None:
                return self._ended(name)
            if states[name] in ("failed", "cancelled", "aborted"):
                return _judged(*self._reason(name, snapshot.run), f"{name} is {states[name]}")
        return self._compared(snapshot) if set(states.values()) == {"done"} else None

    def _compared(self, snapshot: Snapshot) -> End:
        """What is left of a run that is over is its result, at every site."""
        for name, site in self._bed.bed.sites.items():
            directory = site.state / "runs" / file_stem(snapshot.run)
            wait_until(lambda of=directory: _is_tidy(of), "tidy site")
            found = [
                hashlib.sha256(path.read_bytes()).hexdigest()
                for path in directory.rglob("*.safetensors")
            ]
            if found != [self._bed.undisturbed]:
                return End(
                    verdict="WRONG",
                    why=f"{name} has {found}, undisturbed it is {self._bed.undisturbed}",
                )
        return End(verdict="same", why="")

    def _export(self, snapshot: Snapshot, name: str) -> End:
        """The result as the site gets it."""
        if (refused := self._start()) is not None:
            return refused
        out = self._bed.root / "exported.safetensors"
        out.unlink(missing_ok=True)
        done = self._bed.bed.sites[name].node(
            "model", "export", snapshot.run, "--bundle", "--out", str(out)
        )
        if done.code:
            return _judged(done.code, *_said(done.err))
        same = hashlib.sha256(out.read_bytes()).hexdigest() == self._bed.undisturbed
        return End(
            verdict="same" if same else "WRONG", why="" if same else "another model was exported"
        )

    def _ended(self, name: str) -> End:
        """A daemon has ended by itself."""
        site = self._bed.bed.sites[name]
        assert site.process is not None
        return _judged(site.process.wait(30), *_said(site.log.read_text()))

    def _reason(self, name: str, run: str) -> tuple[int, str]:
        journal = f"file:{self._bed.bed.sites[name].state / 'journal.db'}?mode=ro"
        with closing(sqlite3.connect(journal, uri=True, timeout=5)) as db:
            return 1, db.execute("SELECT code FROM runs WHERE run = ?", (run,)).fetchone()[0]


def _said(text: str) -> tuple[str, str]:
    """The code of the last error in a log, and the end of it."""
    found = _SAID.findall(text)
    return (found[-1] if found else ""), " ".join(text.splitlines()[-3:])


def _judged(exit_code: int, code: str, text: str) -> End:
    clear = exit_code > 0 and code in CATALOGUE and code != "E-INTERNAL"
    return End(
        verdict="refused" if clear else "WRONG",
        why=f"exit code {exit_code}, {code or 'no code'}: {text}",
    )


def _is_tidy(directory: Path) -> bool:
    """A run is done before its files are removed, all but the result."""
    return len(list(directory.rglob("*.safetensors"))) == 1 and not any(
        directory.glob("steps/*/checkpoints")
    )
