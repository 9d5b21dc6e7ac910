"""Try schedules by chance, and tell each kind of failure as a short list of events."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.chaos.chance import Choices
from tests.chaos.core.listing import family, shortened, told
from tests.chaos.core.schedules import KINDS, try_schedule


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if any schedule failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.core", description=__doc__)
    parser.add_argument("--schedules", type=int, default=3000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the first seed")
    parser.add_argument(
        "--kind", action="append", metavar="KIND", help=f"one of {', '.join(KINDS)}; default: all"
    )
    parser.add_argument("--choices", metavar="LIST", help="tell the one schedule of these choices")
    options = parser.parse_args(arguments)
    kinds = tuple(options.kind or KINDS)
    if options.choices is not None:
        made = [int(choice) for choice in options.choices.split(",") if choice]
        outcome = try_schedule(kinds[0], Choices(given=made))
        _say(*told(outcome))
        return 1 if outcome.problems else 0
    return 1 if _explore(kinds, options.schedules, options.seed) else 0


def _explore(kinds: Sequence[str], schedules: int, first_seed: int) -> int:
    """Try schedules of all kinds in turn; return how many failed."""
    tried: Counter[str] = Counter()
    failed: Counter[tuple[str, str]] = Counter()
    seen: set[str] = set()
    entries = 0
    seconds = 0.0
    for number in range(schedules):
        kind, seed = kinds[number % len(kinds)], first_seed + number // len(kinds)
        begun = time.process_time()
        outcome = try_schedule(kind, Choices(seed))
        seconds += time.process_time() - begun
        tried[kind] += 1
        entries += len(outcome.federation.log)
        if what := family(outcome.problems):
            failed[kind, what] += 1
            if what not in seen:
                seen.add(what)
                _say(f"{kind}, seed {seed}, shortened:", *told(shortened(outcome)), "")
    rate = 60 * schedules / max(seconds, 1e-3)
    each = entries / max(1, schedules)
    _say(
        f"{schedules} schedules of {each:.0f} entries in {seconds:.1f} s of CPU: {rate:.0f} per"
        " minute and core"
    )
    for kind, count in tried.items():
        found = {what: bad for (of, what), bad in failed.items() if of == kind}
        _say(f"  {kind:30} {count:6} schedules, {sum(found.values())} failed {found or ''}")
    return failed.total()


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
