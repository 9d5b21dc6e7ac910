"""Chains of many sites on one machine: does it complete, what does it cost, and does a hop get
slower with N?

    python bench/sites.py [--json] [--sites 4,20,100] [--deliver last|all] [--directory DIR]

Every site is a real daemon with its own key, journal and data (scikit-learn's digits, the tiny
model `mlp`); the launcher asks them, starts the run and follows it to its end. Measured for each N:

hop        seconds from the end of one site's training to the end of the next one's: the median, and what is left of
           it (`rest`) without the seconds that the site's trainer took to load. Loading is most of a hop with so
           small a model, and it is as fast as whatever else this machine does lets it be; the rest is ours.
trainers   how many lived at once while the chain trained, and how many of them at a site that was neither the active
           nor the next one. Before that, all sites look at their data at once, `asking` tells how many.
memory     proportional set size of all daemons and trainers, in all: the most at any moment, and with daemons alone.
cpu        seconds that a daemon computed, without its trainers: what a site pays for being one of many.

With `--deliver all` every site evaluates the result, and all of them do so within moments:
hospitals have a machine each; here a hundred trainers share this one, and the memory that they take
is shown, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.support.testbed import Bed
from tests.e2e.support.witness import Witness

from fedelmy_launcher.ca import authority
from fedelmy_node.identity import keystore

MANY = (4, 20, 100)
RUN = "bench"
TARGETS = {"memory_bytes": 6e9, "hop_ratio": 1.25, "trainers_elsewhere": 0}
"""At the largest N; a hop there over a hop at the smallest N."""
LOOK_SECONDS = 1.0
WEIGH_LOOKS = 15
"""Looks between two at the memory of the daemons: the kernel takes long to count it, and it hardly
changes.
"""
END_SECONDS = 1.5
"""A trainer that has handed in its work takes so long to end, at most."""
RUN_SECONDS = 3600.0
FEDERATION = """
[federation]
name = "bench"
seed = 3
deliver = "{deliver}"
{sites}
[task]
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
input = {{ height = 8, width = 8, channels = 1 }}

[model]
name = "mlp"

[training]
epochs = 2
learning_rate = 3e-3
threads = 1

[strategy]
name = "fedelmy"
pool_size = 2
warmup_epochs = 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    parser.add_argument("--sites", default=",".join(map(str, MANY)), help="lengths of the chains")
    parser.add_argument(
        "--deliver",
        choices=("last", "all"),
        default="last",
        help="who gets and evaluates the result",
    )
    parser.add_argument(
        "--directory", type=Path, help="for the sites' files; the system's own by default"
    )
    options = parser.parse_args()
    rows = [
        measure(int(many), options.deliver, options.directory) for many in options.sites.split(",")
    ]
    show(rows)
    if options.json:
        print(
            json.dumps(
                {"bench": "sites", "targets": TARGETS, "deliver": options.deliver, "rows": rows}
            )
        )


# --- one chain
# --------------------------------------------------------------------------------------------


def measure(many: int, deliver: str, directory: Path | None) -> dict[str, Any]:
    with chain(many, directory) as bed:
        began = time.monotonic()
        start(bed)
        started = time.monotonic() - began
        tables = (
            f'\n[[sites]]\nname = "{name}"\naddress = "{site.address}"\n'
            for name, site in bed.sites.items()
        )
        bed.file.write_text(FEDERATION.format(deliver=deliver, sites="".join(tables)))
        watch = Watch(bed)
        idle = watch.look()
        with watch:
            result = follow(bed)
        trained = [
            seen(Witness(site, RUN), number)
            for number, site in enumerate(bed.sites.values(), start=1)
        ]
        cpu = [cpu_seconds(site.process.pid) for site in bed.sites.values() if site.process]
    return {
        "sites": many,
        "completed": result["state"] == "done" and len(result["contributors"]) == many,
        "starting_seconds": round(started, 1),
        "run_seconds": result["seconds"],
        **hops(trained),
        **trainers(watch.moments, list(bed.sites), trained),
        "idle_bytes": idle.memory,
        "idle_bytes_per_site": idle.memory // many,
        "memory_bytes": max(moment.memory for moment in watch.moments),
        "cpu_seconds_per_site": round(statistics.mean(cpu), 2),
    }


@contextmanager
def chain(many: int, directory: Path | None) -> Iterator[Bed]:
    root = Path(tempfile.mkdtemp(prefix="fedelmy-sites-", dir=directory))
    bed = Bed(root, [f"site-{number:03}" for number in range(1, many + 1)])
    try:
        provision(bed)
        yield bed
    finally:
        bed.close()
        shutil.rmtree(root)


def provision(bed: Bed) -> None:
    """As `ca init`, `identity init`, `ca sign` and `identity install` do, without a process for
    each.
    """
    authority.init(bed.ca)
    for site in bed.sites.values():
        home = site.state / "identity"
        keystore.init(home, site.name, "site")
        keystore.install(
            home, authority.sign(bed.ca, home / "request.csr", bed.root / f"{site.name}.pem").path
        )


def start(bed: Bed) -> None:
    """From the last to the first, each with the next as its peer."""
    following: list[str] = []
    for name, site in reversed(bed.sites.items()):
        site.start(*following)
        following = ["--peer", f"{name}={site.address}"]


def follow(bed: Bed) -> dict[str, Any]:
    """The result of a run that a launcher starts and follows; a long chain lasts longer than a
    command of the bed.
    """
    command = [sys.executable, "-m", "fedelmy_launcher", "run", "--json", "--run", RUN]
    done = subprocess.run(
        command, cwd=bed.root, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    if done.returncode:
        raise SystemExit(f"the run did not complete:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


# --- what is seen meanwhile
# -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moment:
    time: float
    memory: int
    """PSS of all daemons and trainers."""
    trainers: tuple[int, ...]
    """The numbers of the sites that have one, from 0."""


class Watch:
    """Looks at all processes of a bed again and again."""

    def __init__(self, bed: Bed) -> None:
        self._daemons = {
            site.process.pid: number
            for number, site in enumerate(bed.sites.values())
            if site.process
        }
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._daemon_bytes = 0
        self.moments: list[Moment] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ends.wait(LOOK_SECONDS):
            self.moments.append(self.look())

    def look(self) -> Moment:
        now = time.time()
        children = [
            (pid, self._daemons[parent]) for pid, parent in processes() if parent in self._daemons
        ]
        if len(self.moments) % WEIGH_LOOKS == 0:
            self._daemon_bytes = sum(map(pss_bytes, self._daemons))
        memory = self._daemon_bytes + sum(pss_bytes(pid) for pid, _ in children)
        return Moment(now, memory, tuple(sorted(site for _, site in children)))


def processes() -> Iterator[tuple[int, int]]:
    """(process, its parent), but for those that have ended."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            status = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if status[0] != "Z":
            yield int(process.name), int(status[1])


def pss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has ended meanwhile
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def cpu_seconds(pid: int) -> float:
    status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(status[11]) + int(status[12])) / os.sysconf("SC_CLK_TCK")


# --- what it means
# ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trained:
    """A site's train step."""

    begin: float
    end: float
    loading_seconds: float


def seen(witness: Witness, number: int) -> Trained:
    step = f"train.{number}@"
    begun, done = (
        witness.find("step", step, state="running"),
        witness.find("step", step, state="done"),
    )
    ready = witness.find("ready", step)
    assert begun is not None and done is not None and ready is not None, (
        f"{witness.site.name} has not trained"
    )
    return Trained(begun.time, done.time, ready.data["seconds"])


def hops(trained: Sequence[Trained]) -> dict[str, Any]:
    each = [after.end - before.end for before, after in itertools.pairwise(trained)]
    rest = [hop - step.loading_seconds for hop, step in zip(each, trained[1:], strict=True)]
    quarter = max(1, len(each) // 4)
    first, last = statistics.median(each[:quarter]), statistics.median(each[-quarter:])
    return {
        "hop_seconds": round(statistics.median(each), 2),
        "loading_seconds": round(
            statistics.median(step.loading_seconds for step in trained[1:]), 2
        ),
        "rest_seconds": round(statistics.median(rest), 2),
        "slowest_hop_seconds": round(max(each), 2),
        "last_over_first": round(last / first, 2),
    }


def trainers(
    moments: Sequence[Moment], names: Sequence[str], trained: Sequence[Trained]
) -> dict[str, Any]:
    begins, ends = [step.begin for step in trained], [step.end for step in trained]
    before = [moment for moment in moments if moment.time < begins[0]]
    after = [moment for moment in moments if moment.time > ends[-1]]
    during = [moment for moment in moments if begins[0] <= moment.time <= ends[-1]]
    elsewhere: set[str] = set()
    for moment in during:
        active = max(number for number, begin in enumerate(begins) if begin <= moment.time)
        for site in moment.trainers:
            ends_now = moment.time - ends[site] < END_SECONDS and site < active
            if site not in (active, active + 1) and not ends_now:
                elsewhere.add(names[site])
    return {
        "trainers_asking": max((len(moment.trainers) for moment in before), default=0),
        "trainers": max((len(moment.trainers) for moment in during), default=0),
        "trainers_elsewhere": len(elsewhere),
        "trainers_after": max((len(moment.trainers) for moment in after), default=0),
        "training_memory_bytes": max((moment.memory for moment in during), default=0),
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    head = f"{'sites':>5} {'done':>5} {'run s':>8} {'hop s':>7} {'loading':>8} {'rest':>6} {'slowest':>8}"
    head += f" {'last/first':>10} {'trainers':>9}"
    print(f"{head} {'elsewhere':>9} {'asking':>7} {'idle MB':>8} {'most MB':>8} {'cpu s/site':>10}")
    for row in rows:
        print(
            f"{row['sites']:>5} {'yes' if row['completed'] else 'NO':>5} {row['run_seconds']:>8.1f}"
            f" {row['hop_seconds']:>7.2f} {row['loading_seconds']:>8.2f} {row['rest_seconds']:>6.2f}"
            f" {row['slowest_hop_seconds']:>8.2f} {row['last_over_first']:>10.2f}"
            f" {row['trainers']:>9} {row['trainers_elsewhere']:>9} {row['trainers_asking']:>7}"
            f" {row['idle_bytes'] / 1e6:>8.0f} {row['memory_bytes'] / 1e6:>8.0f} {row['cpu_seconds_per_site']:>10.2f}"
        )
    least, most = rows[0], rows[-1]
    if least is not most:
        ratio = most["hop_seconds"] / least["hop_seconds"]
        rest = most["rest_seconds"] / least["rest_seconds"]
        print(
            f"a hop with {most['sites']} sites over one with {least['sites']}: {ratio:.2f}", end=""
        )
        print(f"   target {TARGETS['hop_ratio']}; without loading {rest:.2f}", end="")
        # Loading is the site's own: if it takes longer, the machine has become slower.
        print(
            f"; in units of loading {ratio * least['loading_seconds'] / most['loading_seconds']:.2f}"
        )
    print(f"memory with {most['sites']} sites: {most['memory_bytes'] / 1e9:.2f} GB", end="")
    print(f"   target {TARGETS['memory_bytes'] / 1e9:.0f} GB at 100")


if __name__ == "__main__":
    os.umask(0o077)
    main()
