"""Every process is killed with SIGKILL at every moment of a run, and every run ends by itself with
the same bytes.

    python tests/e2e/kill_matrix.py [--pull] [--only WHO:WHEN]... [--apart] [--beds N] [--json]

What died is started again, except for a launcher: its run ends without one, and only then another
launcher is asked for the result. A cell is n/a where no such process is there at that moment. Exit
code 0: no cell failed.

Every run loads torch six times, so a run has two or three kills, each of another kind at another
moment; if anything is wrong with it, each of its cells is tried again in a run of its own.
`--apart` does that at once. With `--pull`, nobody can call the second site: what it receives flows
backwards over connections of its own.
"""

from __future__ import annotations

import argparse
import json
import queue
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from tests.e2e.support.kill_points import MOMENTS, MissedError
from tests.e2e.support.killbed import WHO, KillBed, Who
from tests.e2e.support.testbed import Bed

__all__ = ["main", "acts", "perform", "Cell", "Outcome"]

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
    """From the kill to the next one of the same run, or to its end."""
    victim: str = ""
    """The site whose process was killed."""
    reason: str = ""
    """Why it failed."""
    repeated_epochs: int = 0
    """Trained once more in that run, because of all its kills."""

    @property
    def text(self) -> str:
        return f"ok {self.seconds:.0f} s" if self.verdict == "ok" else self.verdict


_GROUPS = (
    ("warm-up", "mid-transfer-sender", "mid-epoch"),
    ("before-begin", "between-members", "evaluating"),
    ("mid-transfer-receiver", "averaging"),
    ("after-receipt", "delivering"),
)
"""Moments that one run can have in this order: the hand-over between the sites is disturbed in one
way only.
"""


def acts(cells: Sequence[Cell], *, apart: bool) -> list[tuple[Cell, ...]]:
    """The kills of each run: everybody dies once at every moment, nobody twice in one run."""
    if apart:
        return [(cell,) for cell in cells]
    plans = [
        tuple(Cell(WHO[(first + place) % len(WHO)], when) for place, when in enumerate(group))
        for group in _GROUPS
        for first in range(len(WHO))
    ]
    return [kept for plan in plans if (kept := tuple(cell for cell in plan if cell in cells))]


def perform(bed: KillBed, *cells: Cell) -> list[Outcome]:
    """One run with these kills, in the order of their moments; what is wrong with it is wrong with
    all of them.
    """
    begun = time.monotonic()
    for _ in range(_TRIES):
        victims, kills = [], []
        try:
            with bed.run(f"{cells[0].who}-{cells[0].when}-{secrets.token_hex(3)}") as run:
                for cell in cells:
                    victims.append(run.kill(cell.who, MOMENTS[cell.when]))
                    kills.append(time.monotonic())
                result, tally = run.end(), run.tally()
        except MissedError:
            continue  # that run goes on by itself; the next one waits until the device is free
        except Exception as error:  # noqa: BLE001 - the table tells
            return _failures(cells, begun, str(error).strip() or repr(error))
        wrong = list(tally.wrong)
        if result["bundle_sha256"] != bed.undisturbed:
            wrong.append(
                f"the result is {result['bundle_sha256'][:12]}, undisturbed it is {bed.undisturbed[:12]}"
            )
        if wrong:
            return _failures(cells, begun, "; ".join(wrong))
        return [
            Outcome(
                cell=cell,
                verdict="ok" if victim else "n/a",
                victim=victim,
                seconds=after - before,
                repeated_epochs=tally.repeated_epochs,
            )
            for cell, victim, before, after in zip(
                cells, victims, kills, [*kills[1:], time.monotonic()], strict=True
            )
        ]
    return _failures(cells, begun, f"a moment was missed {_TRIES} times")


def _failures(cells: Sequence[Cell], begun: float, reason: str) -> list[Outcome]:
    seconds = time.monotonic() - begun
    return [Outcome(cell=cell, verdict="FAIL", seconds=seconds, reason=reason) for cell in cells]


class Matrix:
    """All cells, on several beds at once: a run is mostly one process that loads torch."""

    def __init__(self, acts: Sequence[tuple[Cell, ...]], root: Path, *, pull: bool = False) -> None:
        self._pull = pull
        self._acts: queue.SimpleQueue[tuple[Cell, ...]] = queue.SimpleQueue()
        for act in acts:
            self._acts.put(act)
        self._root = root
        self._lock = threading.Lock()
        self._total = sum(len(act) for act in acts)
        self.outcomes: dict[Cell, Outcome] = {}
        self.problems: list[str] = []

    def run(self, beds: int) -> None:
        threads = [threading.Thread(target=self._work, args=(number,)) for number in range(beds)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, number: int) -> None:
        made, bed = 0, None
        try:
            while (act := self._next()) is not None:
                if bed is None:
                    bed = _make_bed(self._root / f"bed-{number}-{made}", self._pull)
                    made += 1
                outcomes = perform(bed, *act)
                failed = any(outcome.verdict == "FAIL" for outcome in outcomes)
                if failed:
                    bed.close()  # whatever is wrong there stays there
                    bed = None
                if failed and len(act) > 1:
                    _say(
                        f"        {', '.join(map(str, act))}: FAIL, each again by itself: {outcomes[0].reason}"
                    )
                    for cell in act:
                        self._acts.put((cell,))
                else:
                    self._add(outcomes)
        except Exception as error:  # noqa: BLE001 - a bed that cannot be made fails the whole
            self.problems.append(f"bed {number}: {error}")
        finally:
            if bed is not None:
                bed.close()

    def _next(self) -> tuple[Cell, ...] | None:
        try:
            return self._acts.get_nowait()
        except queue.Empty:
            return None

    def _add(self, outcomes: Sequence[Outcome]) -> None:
        with self._lock:
            for outcome in outcomes:
                self.outcomes[outcome.cell] = outcome
                where = f" at {outcome.victim}" if outcome.victim not in ("", "launcher") else ""
                _say(
                    f"[{len(self.outcomes):>2}/{self._total}] {outcome.cell.when}: {outcome.cell.who}{where}:"
                    f" {outcome.text} {outcome.reason}".rstrip()
                )


def _make_bed(root: Path, pull: bool) -> KillBed:
    root.mkdir()
    bed = Bed(root, ("north", "south"))
    bed.provision()
    made = KillBed(bed, pull=pull)
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
        texts = [
            outcomes[cell].text if (cell := Cell(name, moment)) in outcomes else "-" for name in who
        ]
        lines.append(f"{moment:22}" + "".join(f"{text:>16}" for text in texts))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", metavar="WHO:WHEN", help="only this cell; repeatable, * is all"
    )
    parser.add_argument("--pull", action="store_true", help="the second site cannot be called")
    parser.add_argument("--apart", action="store_true", help="a run of its own for every cell")
    parser.add_argument("--beds", type=int, default=2, help="federations at once (2)")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    options = parser.parse_args(arguments)
    everything = [Cell(who, when) for when in MOMENTS for who in WHO]
    cells = [
        cell
        for cell in everything
        if not options.only or any(_fits(cell, only) for only in options.only)
    ]
    if not cells:
        parser.error(f"no such cell; who: {', '.join(WHO)}; when: {', '.join(MOMENTS)}")
    begun = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="fedelmy-kills-"))
    plans = acts(cells, apart=options.apart)
    matrix = Matrix(plans, root, pull=options.pull)
    matrix.run(min(options.beds, len(plans)))
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
    _say(
        f"{counts} of {len(cells)} cells in {seconds:.0f} s"
        + ("" if green else f"; logs in {root}")
    )
    if green:
        shutil.rmtree(root)
    if options.json:
        rows = [asdict(outcome) for outcome in matrix.outcomes.values()]
        _say(
            json.dumps(
                {
                    "kill_matrix": rows,
                    "problems": matrix.problems,
                    "green": green,
                    "seconds": seconds,
                }
            )
        )
    return 0 if green else 1


def _fits(cell: Cell, only: str) -> bool:
    who, _, when = only.partition(":")
    return who in ("*", cell.who) and when in ("", "*", cell.when)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
