"""What the operator's view of a run costs: a long history in, one picture out.

    python -m bench.view [--json] [--events N]

Adds events to the history behind the report and to the live view, a third at a time. The ratio of
the last third to the first says whether the cost of an event grows with how many there were. Beside
it, the time of one drawing, and of `fedelmy-node --help` compared with a bare Python.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable

from rich.console import Console
from tests.support.federations import make_plan

from fedelmy_launcher.view.history.fold import RunHistory
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_launcher.view.terminal.screen import live_view
from fedelmy_node.domain.events import Event, EventKind
from fedelmy_node.domain.names import RunId, SiteName, StepId

PLAN = make_plan("north", "south")


def epoch(number: int, total: int) -> Event:
    data = {"phase": "member", "member": 1, "members": 1, "epochs": total, "loss": 1.0}
    return Event(
        seq=number,
        time=1.8e9 + number,
        run=RunId("run-1"),
        site=SiteName("north"),
        step=StepId("train.1@north"),
        kind=EventKind.EPOCH,
        data={**data, "epoch": number, "accuracy": 0.5},
    )


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def growth(add: Callable[[Event], object], total: int) -> tuple[float, float]:
    """Return the microseconds per event, and the last third's cost divided by the first one's."""
    third = total // 3

    def part(first: int) -> float:
        events = [epoch(number, total) for number in range(first, first + third)]
        return seconds(lambda: [add(event) for event in events])

    costs = [part(1 + place * third) for place in range(3)]
    return 1e6 * sum(costs) / (3 * third), costs[2] / costs[0]


def command_seconds(*command: str) -> float:
    """Return the shortest of five runs."""
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - began)
    return min(taken)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    parser.add_argument("--events", type=int, default=30_000)
    options = parser.parse_args()
    history, progress = RunHistory(PLAN), RunProgress(PLAN)
    row: dict[str, float] = {}
    row["history_us"], row["history_growth"] = growth(history.add, options.events)
    row["live_us"], row["live_growth"] = growth(progress.add, options.events)
    row["encode_seconds"] = seconds(history.encoded)
    console = Console(width=120, height=40, file=io.StringIO())
    row["draw_seconds"] = seconds(lambda: console.print(live_view(progress, console, [])))
    bare = command_seconds("-c", "pass")
    row["help_seconds"] = command_seconds("-m", "fedelmy_node", "--help")
    row["help_ratio"] = row["help_seconds"] / bare
    for name, value in row.items():
        print(f"{name:<16} {value:10.3f}")
    if options.json:
        print(json.dumps({"bench": "view", "events": options.events, **row}))


if __name__ == "__main__":
    main()
