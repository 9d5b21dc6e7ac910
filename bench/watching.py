"""What it costs to be watched: training throughput at a real node with nobody watching, and with
several streams.

    python bench/watching.py [--json] [--pairs N] [--seconds N] [--watchers N] [--model NAME]

One site over mutual TLS trains on digits without end; the run is cancelled when enough was seen.
Every few seconds watchers come or go: operators in a process of their own, each with a connection
and a Control.Watch stream that gets every event. A stretch without them and one with them lie side
by side, in turns first and second, so what else the machine does hits both alike; the ratio is
taken within each such pair. Throughput is samples per second by the events' own times; beside it
the processor time per sample of the trainer and of the daemon, which hardly depends on what else
runs. A stretch in which a watcher missed an event fails.

The default model takes a tenth of a second for an epoch of digits, so there are ten events a
second: real epochs take minutes. `--model mlp` is the worst case, with an event every few
hundredths of a second.
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

from tests.e2e.support.testbed import Bed
from tests.e2e.support.witness import Witness, trainers_of, wait_until

from fedelmy_launcher.control.find_run import discover
from fedelmy_launcher.control.sites import Sites
from fedelmy_launcher.control.start_run import prepare_run, start_run
from fedelmy_launcher.plans.compiler import compile_plan, load_federation
from fedelmy_node.domain.names import run_id
from fedelmy_node.identity import keystore

ROOT = Path(__file__).resolve().parent.parent
SITE, RUN = "north", "watched"
SETTLE_SECONDS = 1.0
"""After watchers came or went: connections are made, and what happened before is told."""
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
epochs = 100000
learning_rate = 1e-3
batch_size = 64
threads = 1

[strategy]
name = "fedelmy"
pool_size = 1
warmup_epochs = 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one stretch")
    parser.add_argument("--watchers", type=int, default=1, help="streams at once")
    parser.add_argument("--model", default="cnn-small")
    options = parser.parse_args()
    rows = []
    with training(options.model) as site:
        watchers = Watchers(site, options.watchers)
        print(
            f"{'pair':>4} {'watchers':>8} {'samples/s':>10} {'trainer us/sample':>18} {'daemon us/sample':>17}"
        )
        for pair in range(options.pairs):
            for watched in (False, True) if pair % 2 == 0 else (True, False):
                rows.append(
                    {"pair": pair, **measure(site, watchers if watched else None, options.seconds)}
                )
                show(rows[-1])
        watchers.end()
    summary = summed_up(rows)
    print(
        f"throughput with {options.watchers} watchers / with none: {summary['throughput_ratio']:.4f}",
        end="",
    )
    print(
        f" (quartiles {summary['throughput_quartiles'][0]:.3f} and {summary['throughput_quartiles'][1]:.3f})"
    )
    print(
        f"trainer's processor time per sample: {summary['trainer_ratio']:.4f}; daemon's, in all: ",
        end="",
    )
    print(f"{summary['daemon_share']:.4f} of the trainer's more")
    print(f"target: at least {1 - TARGET:.2f}")
    if options.json:
        print(
            json.dumps(
                {
                    "bench": "watching",
                    "target": TARGET,
                    "model": options.model,
                    **summary,
                    "rows": rows,
                }
            )
        )


class Training:
    """A run without end at a real node."""

    def __init__(self, bed: Bed) -> None:
        site = bed.sites[SITE]
        assert site.process is not None
        self.address, self.operator, self.daemon = (
            site.address,
            bed.ca / "operator",
            site.process.pid,
        )
        self.witness = Witness(site, RUN)
        wait_until(
            lambda: len(self.witness.events(kind="epoch")) >= 3, "three epochs", 120, every=0.2
        )
        self.samples = next(
            e.data["train"] for e in self.witness.events(kind="ready") if e.data.get("train")
        )
        self.meter = Meter(self.daemon)

    def last(self) -> int:
        return max(event.seq for event in self.witness.events())


@contextlib.contextmanager
def training(model: str) -> Iterator[Training]:
    root = Path(tempfile.mkdtemp(prefix="fedelmy-watching-"))
    bed = Bed(root, (SITE,))
    try:
        bed.provision()
        bed.sites[SITE].start(data="digits")
        bed.file.write_text(FEDERATION.format(address=bed.sites[SITE].address, model=model))
        federation = load_federation(bed.file)
        with Sites(federation, keystore.load(bed.ca / "operator")) as sites:
            plan = compile_plan(federation, run_id(RUN))
            start_run(sites, plan.run, prepare_run(sites, plan))
            made = Training(bed)
            with made.meter:
                yield made
            reports, _ = discover(sites, plan.run)
            sites.cancel(plan.run, "enough was seen", reports)
    finally:
        bed.close()
        shutil.rmtree(root)


class Watchers:
    """The process that watches; streams are opened and closed at a word."""

    def __init__(self, site: Training, count: int) -> None:
        self.count = count
        command = [sys.executable, str(ROOT / "bench" / "ends" / "watchers.py"), site.address, SITE]
        self._process = subprocess.Popen(
            [*command, str(site.operator), RUN, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def on(self, after: int) -> None:
        assert self._ask(f"on {after}") == "on"

    def off(self) -> list[tuple[int, int, int]]:
        seen: list[tuple[int, int, int]] = json.loads(self._ask("off").removeprefix("off "))
        return seen

    def _ask(self, words: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{words}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        self._process.communicate(timeout=20)


def measure(site: Training, watchers: Watchers | None, seconds: float) -> dict[str, Any]:
    """One stretch, with or without watchers; what comes and goes at its ends is left out."""
    before = site.last()
    if watchers is not None:
        watchers.on(before)
    time.sleep(SETTLE_SECONDS)
    begun = time.time()
    time.sleep(seconds)
    ended = time.time()
    epochs = [e for e in site.witness.events(before, "epoch") if begun <= e.time <= ended]
    if watchers is not None:
        known = {event.seq for event in site.witness.events(before)}
        for first, last, count in watchers.off():
            there = sum(first <= seq <= last for seq in known)
            assert first == min(known) and last >= epochs[-1].seq and count == there, (
                "a watcher missed an event"
            )
    assert len(epochs) >= 3, f"only {len(epochs)} epochs in {seconds} s: give more --seconds"
    first_at, last_at = epochs[0].time, epochs[-1].time
    samples = site.samples * (len(epochs) - 1)
    return {
        "watchers": watchers.count if watchers is not None else 0,
        "epochs": len(epochs),
        "samples_per_second": round(samples / (last_at - first_at), 1),
        "trainer_cpu_us_per_sample": round(
            1e6 * site.meter.trainer(first_at, last_at) / samples, 3
        ),
        "daemon_cpu_us_per_sample": round(1e6 * site.meter.daemon(first_at, last_at) / samples, 3),
    }


class Meter:
    """Processor time of a daemon and of its trainer while it runs, looked at several times a
    second.
    """

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
        return max(
            between(seen, first, last)
            for process, seen in self._seen.items()
            if process != self._daemon
        )


def between(samples: list[tuple[float, float]], first: float, last: float) -> float:
    """What was added between two moments; between two looks it grows evenly."""

    def at(moment: float) -> float:
        before = max((seen for seen in samples if seen[0] <= moment), default=samples[0])
        after = min((seen for seen in samples if seen[0] >= moment), default=samples[-1])
        share = (moment - before[0]) / (after[0] - before[0]) if after[0] > before[0] else 0.0
        return before[1] + share * (after[1] - before[1])

    return at(last) - at(first) if samples else 0.0


def summed_up(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of each kind, and of the ratios within pairs."""
    alone, watched = (
        [row for row in rows if bool(row["watchers"]) is wanted] for wanted in (False, True)
    )

    def ratios(key: str) -> list[float]:
        other = {row["pair"]: row[key] for row in alone}
        return sorted(row[key] / other[row["pair"]] for row in watched)

    keys = ("samples_per_second", "trainer_cpu_us_per_sample", "daemon_cpu_us_per_sample")
    medians = {
        name: {key: statistics.median(row[key] for row in part) for key in keys}
        for name, part in (("alone", alone), ("watched", watched))
    }
    throughput = ratios(keys[0])
    more = medians["watched"][keys[2]] - medians["alone"][keys[2]]
    return {
        **medians,
        "throughput_ratio": round(statistics.median(throughput), 4),
        "throughput_quartiles": [
            round(throughput[len(throughput) * part // 4], 4) for part in (1, 3)
        ],
        "trainer_ratio": round(statistics.median(ratios(keys[1])), 4),
        "daemon_share": round(more / medians["alone"][keys[1]], 4),
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
