"""Any bit of any file in a site's state directory is flipped: the node reads the same, mends it, or
refuses clearly.

    python tests/e2e/flip_bits.py [--kind KIND]... [--flips N] [--runs N] [--beds N] [--seed N]
    [--json]

Snapshots are taken of a run of real daemons that are killed in the middle of it. Each flip is in a
fresh copy of one. `--flips` of each kind (300) go through the start of a node and the code that
reads the file, without training; `--runs` of each kind (10) to the end of the run, with real
daemons. Exit code 0: nothing was WRONG.

    harmless   the same was read
    repaired   said that something cannot be used, and fell back to what is right, or to less of it
    history    an event of the past reads differently: shown to people, decides nothing
    refused    an error of the catalogue
    WRONG      something else was read without a word; or a fault of the software
"""

from __future__ import annotations

import argparse
import json
import logging
import queue
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from fedelmy_node.domain.errors import FedelmyError
from tests.e2e.support.flip_reads import READERS, Place, Read
from tests.e2e.support.flip_runs import Stage
from tests.e2e.support.flipbed import KINDS, SITES, FlipBed, Snapshot, strangers

__all__ = ["Flip", "Judged", "Judge", "flips", "main"]

Verdict = Literal["harmless", "repaired", "history", "refused", "same", "WRONG"]
_READ: Sequence[Verdict] = ("harmless", "repaired", "history", "refused", "WRONG")
_RUN: Sequence[Verdict] = ("same", "refused", "WRONG")
_HEAD_BYTES = 1024
"""Of three flips one is so near to the beginning, because headers are small, and one is in a byte
that is not zero.
"""
_LOOKS = 50
_JOBS = "jobs: n/a, they cross a pipe and are never on the disk"


@dataclass(frozen=True, slots=True)
class Flip:
    """One bit of one file."""

    kind: str
    file: str
    """Below the state directory."""
    offset: int
    bit: int

    def __str__(self) -> str:
        return f"{self.kind}: bit {self.bit} of byte {self.offset} of {self.file}"

    def apply(self, state: Path) -> None:
        with (state / self.file).open("r+b") as file:
            file.seek(self.offset)
            byte = file.read(1)[0]
            file.seek(self.offset)
            file.write(bytes([byte ^ 1 << self.bit]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What came of a flip."""

    flip: Flip
    verdict: Verdict
    why: str = ""


def flips(kind: str, snapshot: Snapshot, count: int, seed: int) -> Iterator[Flip]:
    """Files are chosen alike, however large they are: most bits are those of tensors."""
    chance = random.Random(f"{seed} {kind}")
    paths, state = KINDS[kind].paths(snapshot), snapshot.state(KINDS[kind].site)
    assert paths, f"the snapshot has no {kind}"
    for number in range(count):
        path = chance.choice(paths)
        data = path.read_bytes()
        offset = chance.randrange(min(len(data), _HEAD_BYTES) if number % 3 == 0 else len(data))
        for _ in range(_LOOKS if number % 3 == 1 else 0):
            if data[offset]:
                break
            offset = chance.randrange(len(data))
        yield Flip(kind, str(path.relative_to(state)), offset, chance.randrange(8))


class Judge:
    """Reads files of one kind in copies of a snapshot."""

    def __init__(self, bed: FlipBed, kind: str) -> None:
        self._bed, self._kind = bed, kind
        self.snapshot = bed.snapshot(kind)
        self._copy = bed.root / "copy"
        self._whole = self._read(lambda state: None)
        self._less = [
            (less.content, less.history) for less in map(self._read, _FALLBACKS.get(kind, ()))
        ]
        """What may be read instead."""

    def judge(self, flip: Flip) -> Judged:
        try:
            read = self._read(flip.apply, flip.file)
        except FedelmyError as error:
            clear = error.code != "E-INTERNAL"
            return Judged(
                flip=flip,
                verdict="refused" if clear else "WRONG",
                why=f"{error.code}: {error.message}",
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody could make sense of it
            return Judged(flip=flip, verdict="WRONG", why=repr(error))
        if (read.content, read.history) in self._less and (read.told or self._kind == "wal"):
            return Judged(
                flip=flip,
                verdict="repaired",
                why=read.told or "the last commit is gone, as after a power loss",
            )
        if read.content == self._whole.content:
            past: Verdict = "harmless" if read.history == self._whole.history else "history"
            return Judged(flip=flip, verdict="repaired" if read.told else past, why=read.told)
        return Judged(
            flip=flip, verdict="WRONG", why=f"other content; told: {read.told or 'nothing'}"
        )

    def _read(self, change: Callable[[Path], None], written: str = "") -> Read:
        """A fresh copy, changed, read."""
        shutil.rmtree(self._copy, ignore_errors=True)
        site = KINDS[self._kind].site
        for name in SITES:
            _copy(self.snapshot.state(name), self._copy / name, written if name == site else "")
        change(self._copy / site)
        return READERS[self._kind](Place(self._copy, site, self._bed.root))


def _copy(source: Path, target: Path, written: str) -> None:
    """Tensors are only read, and replaced as a whole: a link does, but for the file that is to be
    flipped.
    """

    def copy(old: str, new: str) -> None:
        if old.endswith(".safetensors") and old != str(source / written):
            Path(new).hardlink_to(old)
        else:
            shutil.copy2(old, new)

    shutil.copytree(source, target, copy_function=copy)


def _without_last_commit(state: Path) -> None:
    """The log without its last commit, as after a power loss. The format is SQLite's:
    sqlite.org/walformat.html.
    """
    log = state / "journal.db-wal"
    data = log.read_bytes()
    frame_bytes = 24 + int.from_bytes(data[8:12], "big")
    starts = [
        start
        for start in range(32, len(data), frame_bytes)
        if data[start + 8 : start + 16] == data[16:24]
    ]
    commits = [start for start in starts if data[start + 4 : start + 8] != bytes(4)]
    log.write_bytes(data[: commits[-2] + frame_bytes])


def _without(*patterns: str) -> Callable[[Path], None]:
    def change(state: Path) -> None:
        for pattern in patterns:
            found = sorted(state.glob(f"runs/*/steps/*/checkpoints/{pattern}"))
            for path in found[-1:] if pattern == _NEWEST else found:
                path.unlink()

    return change


_NEWEST = "[0-9]*.json"
_FALLBACKS: dict[str, Sequence[Callable[[Path], None]]] = {
    "wal": (_without_last_commit,),
    "checkpoints": (_without(_NEWEST), _without("[0-9]*.safetensors"), _without("*.json")),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kind", action="append", choices=list(KINDS), help="only this kind; repeatable"
    )
    parser.add_argument(
        "--flips", type=int, default=300, help="of each kind, without training (300)"
    )
    parser.add_argument(
        "--runs", type=int, default=10, help="of each kind, to the end of the run (10)"
    )
    parser.add_argument("--beds", type=int, default=2, help="federations at once (2)")
    parser.add_argument("--seed", type=int, default=1, help="chooses the bits (1)")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    options = parser.parse_args(arguments)
    logging.disable()  # what a node logs of a flip is in its verdict
    begun = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="fedelmy-flips-"))
    trial = Trial(root, options.kind or list(KINDS), options.flips, options.runs, options.seed)
    trial.run(options.beds)
    seconds = time.monotonic() - begun
    _say(f"\n{table(trial.read, _READ)}\n{_JOBS}")
    if trial.ran:
        _say(f"\nto the end of the run\n{table(trial.ran, _RUN)}")
    everything = [*trial.read, *trial.ran]
    for problem in trial.problems:
        _say(f"WRONG {problem}")
    wrong = [asdict(judged) for judged in everything if judged.verdict == "WRONG"]
    green = not trial.problems and not wrong
    counts = f"{len(trial.read)} flips read, {len(trial.ran)} to the end, {len(wrong)} WRONG in {seconds:.0f} s"
    _say(counts + ("" if green else f"; more in {root}"))
    if green:
        shutil.rmtree(root)
    if options.json:
        rows = {"read": _rows(trial.read), "to_the_end": _rows(trial.ran)}
        told = {
            "flip_bits": rows,
            "wrong": wrong,
            "problems": trial.problems,
            "green": green,
            "seconds": seconds,
        }
        _say(json.dumps(told))
    return 0 if green else 1


class Trial:
    """All flips: the first bed's are read, meanwhile the others play runs to their end."""

    def __init__(self, root: Path, kinds: Sequence[str], flips: int, runs: int, seed: int) -> None:
        self._root, self._kinds, self._flips, self._seed = root, kinds, flips, seed
        self._plays: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self._runs = runs
        for kind in kinds:
            for number in range(runs if KINDS[kind].played else 0):
                self._plays.put((kind, number))
        self.read: list[Judged] = []
        self.ran: list[Judged] = []
        self.problems: list[str] = []

    def run(self, beds: int) -> None:
        threads = [threading.Thread(target=self._work, args=(number,)) for number in range(beds)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        order = list(KINDS)
        self.ran.sort(key=lambda judged: order.index(judged.flip.kind))

    def _work(self, number: int) -> None:
        bed = FlipBed(self._root / f"bed-{number}")
        try:
            bed.take()
            if number == 0:
                self._read(bed)
            self._play(bed)
        except Exception as error:  # noqa: BLE001 - whatever it is, it fails the whole
            self.problems.append(f"bed {number}: {error!r}")
        finally:
            bed.close()

    def _read(self, bed: FlipBed) -> None:
        for one in bed.snapshots.values():
            for path in (path for site in SITES for path in strangers(one.state(site))):
                self.problems.append(f"nobody has said what a flipped bit does in {path}")
        for kind in self._kinds if self._flips else ():
            begun, judge = time.monotonic(), Judge(bed, kind)
            found = [
                _told(judge.judge(flip))
                for flip in flips(kind, judge.snapshot, self._flips, self._seed)
            ]
            self.read += found
            _say(f"{kind}: {len(found)} flips read in {time.monotonic() - begun:.0f} s")

    def _play(self, bed: FlipBed) -> None:
        stage: Stage | None = None
        while True:
            try:
                kind, number = self._plays.get_nowait()
            except queue.Empty:
                return
            stage = stage or Stage(bed)
            begun = time.monotonic()
            flip = list(flips(kind, bed.snapshot(kind), self._runs, self._seed + 1))[number]
            judged = _told(Judged(flip=flip, **stage.play(kind, flip.apply)))
            self.ran.append(judged)
            _say(
                f"{kind} {number + 1} to the end: {judged.verdict} in {time.monotonic() - begun:.0f} s"
            )


def _told(judged: Judged) -> Judged:
    """Whatever is wrong is told at once."""
    if judged.verdict == "WRONG":
        _say(f"WRONG {judged.flip}: {judged.why}")
    return judged


def _rows(judged: Sequence[Judged]) -> dict[str, dict[str, int]]:
    kinds = dict.fromkeys(one.flip.kind for one in judged)
    return {
        kind: dict(Counter(one.verdict for one in judged if one.flip.kind == kind))
        for kind in kinds
    }


def table(judged: Sequence[Judged], verdicts: Sequence[Verdict]) -> str:
    """Kinds from top to bottom."""
    lines = [f"{'':12}{'flips':>9}" + "".join(f"{verdict:>10}" for verdict in verdicts)]
    for kind in dict.fromkeys(one.flip.kind for one in judged):
        counts = Counter(one.verdict for one in judged if one.flip.kind == kind)
        lines.append(
            f"{kind:12}{counts.total():>9}"
            + "".join(f"{counts[verdict]:>10}" for verdict in verdicts)
        )
    return "\n".join(lines)


def _say(text: str) -> None:
    out = sys.__stdout__  # while a command is called, it writes elsewhere
    assert out is not None
    out.write(f"{text}\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
