"""Every process is killed with SIGKILL at every moment of a run, and every run ends by itself with the same bytes.

    python tests/e2e/kill_matrix.py [--only WHO:WHEN]... [--beds N] [--json]

What died is started again, except for a launcher: its run ends without one, and only then another launcher is asked
for the result. A cell is n/a where no such process is there at that moment. Exit code 0: no cell failed.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from killbed import WHO, KillBed, Who
from moments import MOMENTS, MissedError
from testbed import Bed

__all__ = ["main", "perform", "Cell", "Outcome"]

_TRIES = 3
"""A moment that was over before it was noticed is looked for again, in another run."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Who is killed, and when."""

    who: Who
    when: str

    def __str__(self) -> str:
        return f"{self.who}:{self.when}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of the run."""

    cell: Cell
    verdict: Literal["ok", "n/a", "FAIL"]
    seconds: float
    victim: str = ""
    """The site whose process was killed."""
    reason: str = ""
    """Why it failed."""
    repeated_epochs: int = 0
    """Trained once more because of the kill."""

    @property
    def text(self) -> str:
        return f"ok {self.seconds:.0f} s" if self.verdict == "ok" else self.verdict


def perform(bed: KillBed, cell: Cell) -> Outcome:
    """One run with one kill."""
    begun = time.monotonic()
    for number in range(_TRIES):
        name = f"{cell.who}-{cell.when}-{number}"
        try:
            with bed.run(name) as run:
                try:
                    victims = run.kill(cell.who, MOMENTS[cell.when])
                except MissedError:
                    run.scene.let_go()
                    run.end()
                    continue
                result = run.end()
                tally = run.tally()
        except Exception as error:  # noqa: BLE001 - the table tells
            reason = str(error).strip() or repr(error)
            return Outcome(cell=cell, verdict="FAIL", seconds=time.monotonic() - begun, reason=reason)
        wrong = list(tally.wrong)
        if result["bundle_sha256"] != bed.undisturbed:
            wrong.append(f"the result is {result['bundle_sha256'][:12]}, undisturbed it is {bed.undisturbed[:12]}")
        return Outcome(
            cell=cell, verdict="FAIL" if wrong else "ok" if victims else "n/a", seconds=time.monotonic() - begun,
            victim=victims.text, reason="; ".join(wrong), repeated_epochs=tally.repeated_epochs,
        )  # fmt: skip
    reason = f"the moment was missed {_TRIES} times"
    return Outcome(cell=cell, verdict="FAIL", seconds=time.monotonic() - begun, reason=reason)


class Matrix:
    """All cells, on several beds at once: a run is mostly one process that loads torch."""

    def __init__(self, cells: Sequence[Cell], root: Path) -> None:
        self._cells: queue.SimpleQueue[Cell] = queue.SimpleQueue()
        for cell in cells:
            self._cells.put(cell)
        self._root = root
        self._lock = threading.Lock()
        self._total = len(cells)
        self.outcomes: dict[Cell, Outcome] = {}
        self.problems: list[str] = []

    def run(self, beds: int) -> None:
        threads = [threading.Thread(target=self._work, args=(number,)) for number in range(beds)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, number: int) -> None:
        made = 0
        bed = None
        try:
            while (cell := self._next()) is not None:
                if bed is None:
                    bed = _make_bed(self._root / f"bed-{number}-{made}")
                    made += 1
                outcome = perform(bed, cell)
                self._add(outcome)
                if outcome.verdict == "FAIL":
                    bed.close()  # whatever is wrong there stays there
                    bed = None
        except Exception as error:  # noqa: BLE001 - a bed that cannot be made fails the whole
            self.problems.append(f"bed {number}: {error}")
        finally:
            if bed is not None:
                bed.close()

    def _next(self) -> Cell | None:
        try:
            return self._cells.get_nowait()
        except queue.Empty:
            return None

    def _add(self, outcome: Outcome) -> None:
        with self._lock:
            self.outcomes[outcome.cell] = outcome
            where = f" at {outcome.victim}" if outcome.victim and outcome.victim != outcome.cell.who else ""
            _say(
                f"[{len(self.outcomes):>2}/{self._total}] {outcome.cell.when}: {outcome.cell.who}{where}:"
                f" {outcome.verdict} {outcome.seconds:.1f} s {outcome.reason}".rstrip()
            )


def _make_bed(root: Path) -> KillBed:
    root.mkdir()
    bed = Bed(root, ("north", "south"))
    bed.provision()
    made = KillBed(bed)
    try:
        return made.open()
    except BaseException:
        made.close()
        raise


def table(cells: Sequence[Cell], outcomes: dict[Cell, Outcome]) -> str:
    """Who is killed from left to right, when from top to bottom."""
    who = [name for name in WHO if any(cell.who == name for cell in cells)]
    when = [name for name in MOMENTS if any(cell.when == name for cell in cells)]
    titles = {"both": "daemon+trainer"}
    lines = [f"{'SIGKILL':22}" + "".join(f"{titles.get(name, name):>16}" for name in who)]
    for moment in when:
        texts = [outcomes[cell].text if (cell := Cell(name, moment)) in outcomes else "-" for name in who]
        lines.append(f"{moment:22}" + "".join(f"{text:>16}" for text in texts))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="WHO:WHEN", help="only this cell; repeatable, * is all")
    parser.add_argument("--beds", type=int, default=2, help="federations at once (2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args(arguments)
    everything = [Cell(who, when) for when in MOMENTS for who in WHO]
    cells = [cell for cell in everything if not options.only or any(_fits(cell, only) for only in options.only)]
    if not cells:
        parser.error(f"no such cell; who: {', '.join(WHO)}; when: {', '.join(MOMENTS)}")
    begun = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="fedelmy-kills-"))
    matrix = Matrix(cells, root)
    matrix.run(min(options.beds, len(cells)))
    seconds = time.monotonic() - begun
    verdicts = [outcome.verdict for outcome in matrix.outcomes.values()]
    green = not matrix.problems and len(verdicts) == len(cells) and "FAIL" not in verdicts
    _say("")
    _say(table(cells, matrix.outcomes))
    for outcome in matrix.outcomes.values():
        if outcome.verdict == "FAIL":
            _say(f"FAIL {outcome.cell}: {outcome.reason}")
    for problem in matrix.problems:
        _say(f"FAIL {problem}")
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ("ok", "n/a", "FAIL"))
    _say(f"{counts} of {len(cells)} cells in {seconds:.0f} s" + ("" if green else f"; logs in {root}"))
    if green:
        shutil.rmtree(root)
    if options.json:
        rows = [asdict(outcome) for outcome in matrix.outcomes.values()]
        _say(json.dumps({"kill_matrix": rows, "problems": matrix.problems, "green": green, "seconds": seconds}))
    return 0 if green else 1


def _fits(cell: Cell, only: str) -> bool:
    who, _, when = only.partition(":")
    return who in ("*", cell.who) and when in ("", "*", cell.when)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
