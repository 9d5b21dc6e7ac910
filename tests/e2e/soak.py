"""Random faults on real daemons: every run ends by itself with the bytes of `simulate`, or the
schedule has failed.

    python tests/e2e/soak.py [--schedules 50] [--seed 0] [--json]

Schedule N of a soak has the seed `--seed` + N, and is known from it: `--seed 17 --schedules 1`
repeats the one that was printed as seed 17. Faults come when the run is as far as the schedule
says, or after a while without news. Names are fresh, or used again after a site has refused or the
operator has cancelled. When all faults are over, a person takes a run up again only if nothing of
it goes on; then it must end, every step done once and every bundle received once. Exit code 0: all
schedules ended so.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.e2e.support.fault_schedules import schedule
from tests.e2e.support.soakbed import NAMES, SoakBed, Storm, make_bed

__all__ = ["main", "soak", "table", "Outcome"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a schedule."""

    seed: int
    schedule: str
    ok: bool
    seconds: float
    asked_again: int
    """How often a person took the run up again."""
    missed: int
    """Faults that met nobody."""
    reason: str = ""
    """Why it failed: who hangs, and what it waits for."""

    @property
    def verdict(self) -> str:
        return "ok" if self.ok else "FAIL"


def soak(bed: SoakBed, seed: int) -> Outcome:
    """One schedule; its daemons are as good as before if it ended well."""
    if not bed.news:
        bed.measure()
    drawn, begun = schedule(seed, NAMES), time.monotonic()
    storm = Storm(bed, drawn)
    reason = ""
    try:
        storm.weather()
    except Exception as error:  # noqa: BLE001 - the table tells
        reason = str(error).strip() or repr(error)
        _say(f"{drawn}\n{reason}\n{storm.evidence()}")
    return Outcome(
        seed=seed,
        schedule=str(drawn),
        ok=not reason,
        seconds=time.monotonic() - begun,
        reason=reason,
        asked_again=storm.asked_again,
        missed=storm.missed,
    )


def table(outcomes: Sequence[Outcome]) -> str:
    """Where each kind of fault, opening or fresh name occurred, and how many of those schedules
    ended well.
    """
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        drawn = schedule(outcome.seed, NAMES)
        names = {f"name used again: {opening.how}" for opening in drawn.openings} or {"name fresh"}
        for kind in names | {fault.kind for fault in drawn.faults}:
            found.setdefault(kind, []).append(outcome)
    lines = [f"{'schedules with':24}{'all':>6}{'ok':>6}{'FAIL':>6}"]
    for kind, those in sorted(found.items()):
        well = sum(outcome.ok for outcome in those)
        lines.append(f"{kind:24}{len(those):>6}{well:>6}{len(those) - well:>6}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=50, help="how many (50)")
    parser.add_argument("--seed", type=int, default=0, help="of the first one (0)")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    options = parser.parse_args(arguments)
    root, bed, news = Path(tempfile.mkdtemp(prefix="fedelmy-soak-")), None, 0
    outcomes: list[Outcome] = []
    try:
        for seed in range(options.seed, options.seed + options.schedules):
            if bed is None:
                bed = make_bed(root / f"bed-{seed}")
                bed.news = news
            outcomes.append(outcome := soak(bed, seed))
            _say(
                f"[{len(outcomes)}/{options.schedules}] {outcome.verdict} {outcome.seconds:.0f} s, {outcome.schedule}"
            )
            news = bed.news
            if not outcome.ok:
                bed.close()  # whatever is wrong there stays there
                bed = None
    finally:
        if bed is not None:
            bed.close()
    failed = [outcome for outcome in outcomes if not outcome.ok]
    _say(f"\n{table(outcomes)}\n")
    for outcome in failed:
        _say(f"FAIL seed {outcome.seed}: {outcome.reason}")
    seconds = sum(outcome.seconds for outcome in outcomes)
    again = sum(outcome.asked_again for outcome in outcomes)
    _say(
        f"{len(outcomes) - len(failed)} of {len(outcomes)} schedules ended with the same bytes, in {seconds:.0f} s;"
        f" a person was needed {again} times" + (f"; logs in {root}" if failed else "")
    )
    if not failed:
        shutil.rmtree(root)
    if options.json:
        _say(
            json.dumps(
                {
                    "soak": [asdict(outcome) for outcome in outcomes],
                    "green": not failed,
                    "seconds": seconds,
                }
            )
        )
    return 1 if failed else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
