"""What it costs to be watched: training throughput at a real node with nobody watching, and with several streams.

    python bench/watching.py [--json] [--pairs N] [--watchers N] [--model NAME] [--epochs N]

One site over mutual TLS trains on digits, the same run again and again, in turns without and with watchers: what else
the machine does hits both alike. Watchers are operators in a process of their own, each with a connection and a
Control.Watch stream that gets every event. Throughput is samples per second from the first to the last epoch, by the
events' own times; beside it the processor time that the trainer and the daemon take per sample, which hardly depends
on what else runs. A run in which a watcher missed an event does not count, it fails.

The default model takes some 0.1 s for an epoch of digits, ten events a second: real epochs take minutes. `--model mlp`
is the worst case, with an event every few hundredths of a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "e2e"))
from testbed import Bed
from witness import Witness, trainers_of, wait_until

from fedelmy_launcher.control import Sites, prepare_run, start_run
from fedelmy_launcher.federation_file import load_federation
from fedelmy_launcher.plans import compile_plan
from fedelmy_node.domain.names import run_id
from fedelmy_node.identity import keystore

ROOT = Path(__file__).resolve().parent.parent
SITE = "north"
TARGET = 0.02
"""How much of the throughput may be lost."""
TICKS = os.sysconf("SC_CLK_TCK")
FEDERATION = """\
[federation]
name = "watched"
seed = 3

[[sites]]
name = "north"
address = "{address}"

[task]
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
input = {{ height = 8, width = 8, channels = 1 }}

[model]
name = "{model}"

[training]
epochs = {epochs}
learning_rate = 1e-3
batch_size = 64
threads = 1

[strategy]
name = "fedelmy"
pool_size = 3
warmup_epochs = 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--watchers", type=int, default=4)
    parser.add_argument("--model", default="cnn-small")
    parser.add_argument("--epochs", type=int, default=25, help="per model; four models are trained in a run")
    options = parser.parse_args()
    with provisioned(options.model, options.epochs) as bed:
        measure(bed, "warm", 0)  # caches of files, and what Python compiles
        rows = []
        print(f"{'pair':>4} {'watchers':>8} {'samples/s':>10} {'trainer us/sample':>18} {'daemon us/sample':>17}")
        for pair in range(options.pairs):
            # Whoever goes first in one pair goes second in the next.
            for watchers in (0, options.watchers) if pair % 2 == 0 else (options.watchers, 0):
                rows.append({"pair": pair, **measure(bed, f"p{pair}-w{watchers}", watchers)})
                show(rows[-1])
    summary = summed_up(rows)
    print(f"throughput with {options.watchers} watchers / with none: {summary['throughput_ratio']:.4f}", end="")
    print(f" (pairs: {', '.join(f'{ratio:.3f}' for ratio in summary['throughput_ratios'])})")
    print(f"trainer's processor time per sample: {summary['trainer_ratio']:.4f}", end="")
    print(f"; daemon's: {summary['daemon_ratio']:.3f}")
    print(f"target: at least {1 - TARGET:.2f}")
    if options.json:
        print(json.dumps({"bench": "watching", "target": TARGET, "model": options.model, **summary, "rows": rows}))


@contextlib.contextmanager
def provisioned(model: str, epochs: int) -> Iterator[Bed]:
    root = Path(tempfile.mkdtemp(prefix="fedelmy-watching-"))
    bed = Bed(root, (SITE,))
    try:
        bed.provision()
        bed.sites[SITE].start(data="digits")
        bed.file.write_text(FEDERATION.format(address=bed.sites[SITE].address, model=model, epochs=epochs))
        yield bed
    finally:
        bed.close()
        shutil.rmtree(root)


def measure(bed: Bed, name: str, watchers: int) -> dict[str, Any]:
    """One run, with so many watchers; nobody else looks but this process, at the journal's file."""
    site, operator = bed.sites[SITE], bed.ca / "operator"
    assert site.process is not None
    witness = Witness(site, name)
    with Sites(load_federation(bed.file), keystore.load(operator)) as sites:
        plan = compile_plan(load_federation(bed.file), run_id(name))
        reports = prepare_run(sites, plan)
        watching = watch(site.address, operator, name, watchers) if watchers else None
        with Meter(site.process.pid) as meter:
            start_run(sites, plan.run, reports)
            wait_until(lambda: witness.state() == "done", "end of the run", 600, every=0.1)
    events = witness.events()
    if watching is not None:
        seen = json.loads(watching.communicate(timeout=60)[0].splitlines()[-1])
        assert seen == [len(events)] * watchers, f"{len(events)} events, but watchers saw {seen}"
    epochs = [event for event in events if event.kind == "epoch"]
    first, last = epochs[0].time, epochs[-1].time
    train = next(event.data["train"] for event in events if event.kind == "ready" and event.data.get("train"))
    samples = train * (len(epochs) - 1)
    return {
        "watchers": watchers,
        "epochs": len(epochs),
        "events": len(events),
        "seconds": round(last - first, 3),
        "samples_per_second": round(samples / (last - first), 1),
        "trainer_cpu_us_per_sample": round(1e6 * meter.trainer(first, last) / samples, 3),
        "daemon_cpu_us_per_sample": round(1e6 * meter.daemon(first, last) / samples, 3),
    }


def watch(address: str, operator: Path, run: str, count: int) -> subprocess.Popen[str]:
    """Watchers in a process of their own; returned when all streams are being opened."""
    command = [sys.executable, str(ROOT / "bench" / "ends" / "watchers.py"), address, SITE, str(operator), run]
    process = subprocess.Popen([*command, str(count)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "watching\n"
    return process


class Meter:
    """Processor time of a daemon and of its trainer while it runs, looked at several times a second."""

    def __init__(self, daemon: int) -> None:
        self._daemon = daemon
        self._seen: dict[int, list[tuple[float, float]]] = {daemon: []}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        turn = 0
        while not self._ended.wait(0.1):
            if turn % 10 == 0:
                for trainer in trainers_of(self._daemon):
                    self._seen.setdefault(trainer.pid, [])
            turn += 1
            for process, samples in self._seen.items():
                with contextlib.suppress(OSError):
                    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                    samples.append((time.time(), (int(fields[11]) + int(fields[12])) / TICKS))

    def daemon(self, first: float, last: float) -> float:
        return between(self._seen[self._daemon], first, last)

    def trainer(self, first: float, last: float) -> float:
        """Of the one that trained: the others only looked at the data, or evaluated."""
        return max(between(seen, first, last) for process, seen in self._seen.items() if process != self._daemon)


def between(samples: list[tuple[float, float]], first: float, last: float) -> float:
    """What was added between two moments; between two looks it grows evenly."""

    def at(moment: float) -> float:
        before = max((seen for seen in samples if seen[0] <= moment), default=samples[0])
        after = min((seen for seen in samples if seen[0] >= moment), default=samples[-1])
        share = (moment - before[0]) / (after[0] - before[0]) if after[0] > before[0] else 0.0
        return before[1] + share * (after[1] - before[1])

    return at(last) - at(first) if samples else 0.0


def summed_up(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of each kind, and the median of the ratios within pairs."""
    alone, watched = ([row for row in rows if bool(row["watchers"]) is wanted] for wanted in (False, True))

    def ratios(key: str) -> list[float]:
        other = {row["pair"]: row[key] for row in alone}
        return [row[key] / other[row["pair"]] for row in watched]

    keys = ("samples_per_second", "trainer_cpu_us_per_sample", "daemon_cpu_us_per_sample")
    medians = {
        name: {key: statistics.median(row[key] for row in part) for key in keys}
        for name, part in (("alone", alone), ("watched", watched))
    }
    return {
        **medians,
        "throughput_ratio": round(statistics.median(ratios(keys[0])), 4),
        "throughput_ratios": [round(ratio, 4) for ratio in ratios(keys[0])],
        "trainer_ratio": round(statistics.median(ratios(keys[1])), 4),
        "daemon_ratio": round(statistics.median(ratios(keys[2])), 4),
    }


def show(row: dict[str, Any]) -> None:
    print(
        f"{row['pair']:>4} {row['watchers']:>8} {row['samples_per_second']:>10.0f}"
        f" {row['trainer_cpu_us_per_sample']:>18.2f} {row['daemon_cpu_us_per_sample']:>17.2f}",
        flush=True,
    )


if __name__ == "__main__":
    os.umask(0o077)
    main()
