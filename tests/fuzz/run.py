"""`make fuzz`: every decoder that faces the network, with inputs that are nearly right.

Three engines give inputs to the same targets: our own mutations (fast, most of them), hypothesis
(which makes a failing input small), and, where it is installed, atheris (which looks for inputs
that reach new code). Whatever raises something else than a refusal of ours, takes longer than 2 s,
or needs more memory than the bound, fails the run; the input is kept in fuzz-failures/.

    python tests/fuzz/run.py [--inputs 120000] [--seed 1] [--target TEXT] [--jobs 2]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Final

SECONDS_PER_INPUT: Final = 2.0
"""Of processor time: how long it takes by the clock depends on what else the machine does."""
WAITING_SECONDS: Final = 30.0
MEMORY_BYTES: Final = 512 * 2**20
"""Address space beyond what the process has when it begins: more is a MemoryError."""
HYPOTHESIS_SHARE: Final = 0.1
ATHERIS_SHARE: Final = 0.2


class Hang(BaseException):
    """An input took too long; not an Exception, so that no target can swallow it."""


class Runner:
    """Gives inputs to one target, and keeps what went wrong."""

    def __init__(self, target: Any) -> None:
        from tests.fuzz.targets import run

        self._target, self._run = target, run
        self.outcomes: Counter[str] = Counter()
        self.failures: list[tuple[bytes, str]] = []
        self.slowest = 0.0

    def __call__(self, data: bytes) -> None:
        begun = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS_PER_INPUT)
        signal.setitimer(signal.ITIMER_REAL, WAITING_SECONDS)
        try:
            self.outcomes[self._run(self._target, data)] += 1
        except (Exception, Hang) as error:
            _disarm()
            self.outcomes["FAILED"] += 1
            self.failures.append((data, "".join(traceback.format_exception(error)[-12:])))
            raise
        finally:
            _disarm()
            self.slowest = max(self.slowest, time.process_time() - begun)

    def quietly(self, data: bytes) -> None:
        with contextlib.suppress(Exception, Hang):  # it is kept
            self(data)


def _disarm() -> None:
    for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
        signal.setitimer(timer, 0)


def _hang(number: int, frame: FrameType | None) -> None:
    raise Hang(
        f"an input took longer than {SECONDS_PER_INPUT:.0f} s of work, or {WAITING_SECONDS:.0f} s of waiting"
    )


def work(names: list[str], inputs: int, seed: int) -> None:
    """In a child: these targets, one line of JSON for each."""
    from tests.fuzz import corpus, targets

    known = targets.targets()
    kept = [*corpus.small(), *((name, make()) for name, make in corpus.large() if name in names)]
    for name in names:  # whatever is loaded or made lazily is no part of the bound
        for data in known[name].seeds():
            targets.run(known[name], data)
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, _hang)
    _limit_memory()
    weights = sum(target.weight for target in known.values())
    for name in names:
        target = known[name]
        count = max(50, inputs * target.weight // weights)
        runner, begun, before = Runner(target), time.monotonic(), _reset_peak()
        for data in [*target.seeds(), *(data for where, data in kept if where == name)]:
            runner.quietly(data)
        by_hypothesis = int(count * HYPOTHESIS_SHARE)
        _mutations(runner, target, count - by_hypothesis, seed)
        _hypothesis(runner, target, by_hypothesis, seed)
        _tell(name, runner, time.monotonic() - begun, _status_kb("VmHWM") - before)


def _mutations(runner: Runner, target: Any, count: int, seed: int) -> None:
    from tests.fuzz.mutate import mutate

    for number in range(count):
        chance = random.Random(f"{seed} {target.name} {number}")
        data = (
            chance.choice(target.seeds())
            if chance.random() < 0.97
            else chance.randbytes(chance.randrange(200))
        )
        runner.quietly(mutate(data, chance, target.form))


def _hypothesis(runner: Runner, target: Any, count: int, seed: int) -> None:
    import hypothesis
    from hypothesis import strategies as st

    from tests.fuzz.mutate import mutate

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
    )
    @hypothesis.given(
        st.sampled_from(target.seeds()) | st.binary(max_size=300), st.randoms(use_true_random=False)
    )
    def one(data: bytes, chance: random.Random) -> None:
        runner(mutate(data, chance, target.form))

    try:
        one()
    except (Exception, Hang):  # noqa: BLE001 - the runner has it, and the small one last
        runner.failures[:] = runner.failures[:1] + runner.failures[-1:]


def atheris_child(name: str, count: int, seed: int) -> None:
    """In a child: one target, guided by the code that is reached. libFuzzer ends the process
    itself.
    """
    import atheris

    with atheris.instrument_imports(include=["fedelmy_node", "fedelmy_launcher"]):
        from tests.fuzz import targets
    from tests.fuzz.mutate import mutate

    target = targets.targets()[name]
    targets.run(target, target.seeds()[0])

    def custom(data: bytes, max_size: int, number: int) -> bytes:
        return mutate(bytes(data), random.Random(number), target.form)[:max_size]

    def one(data: bytes) -> None:
        targets.run(target, data)

    from tests.fuzz import place

    seeds = place.directory() / "seeds"
    seeds.mkdir()
    for number, data in enumerate(target.seeds()):
        (seeds / str(number)).write_bytes(data)
    failures = Path("fuzz-failures")
    failures.mkdir(exist_ok=True)
    options = [
        f"-runs={count}",
        f"-seed={seed}",
        f"-timeout={WAITING_SECONDS:.0f}",
        "-rss_limit_mb=1024",
    ]
    options += ["-max_len=262144", "-verbosity=0"]
    stem = f"-artifact_prefix={failures}/{_stem(name)}-atheris-"
    atheris.Setup([sys.argv[0], *options, stem, str(seeds)], one, custom_mutator=custom)
    atheris.Fuzz()


# --- memory
# -----------------------------------------------------------------------------------------------------


def _limit_memory() -> None:
    bound = _status_kb("VmSize") * 1024 + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))


def _reset_peak() -> int:
    """Resident memory now, in kB; the peak is counted from here."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status_kb("VmRSS")


def _status_kb(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{key}:")).split()[1])


# --- the parent
# -------------------------------------------------------------------------------------------------


def _tell(name: str, runner: Runner, seconds: float, peak_kb: int) -> None:
    failures = [(data.hex(), text) for data, text in runner.failures[:5]]
    line = {
        "target": name,
        "outcomes": dict(runner.outcomes),
        "seconds": seconds,
        "slowest": runner.slowest,
        "peak_kb": peak_kb,
        "failures": failures,
    }
    print(json.dumps(line), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=120_000, help="in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", default="", help="only targets whose names have this in them")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--atheris", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(json.loads(options.work), options.inputs, options.seed)
        return 0
    if options.atheris is not None:
        atheris_child(options.atheris, options.inputs, options.seed)
        return 0
    from tests.fuzz import place

    os.environ[place.ROOT] = str(
        place.directory()
    )  # libFuzzer ends its processes without cleaning up
    return _lead(options)


def _lead(options: argparse.Namespace) -> int:
    from tests.fuzz.targets import targets

    chosen = {name: target for name, target in targets().items() if options.target in name}
    weights = sum(target.weight for target in targets().values())
    guided = importlib.util.find_spec("atheris") is not None
    limits = f"{SECONDS_PER_INPUT:.0f} s per input, {MEMORY_BYTES >> 20} MiB beyond the start"
    print(f"{len(chosen)} targets, seed {options.seed}, {limits}")
    print(
        f"{'target':<30} {'inputs':>7} {'accepted':>8} {'refused':>8} {'seconds':>8} {'slowest':>8} {'memory':>9}"
    )
    begun, total, failed = time.monotonic(), 0, 0
    own = int(options.inputs * (1 - ATHERIS_SHARE)) if guided else options.inputs
    shares = [list(chosen)[job :: options.jobs] for job in range(options.jobs)]
    children = [
        _child("--work", json.dumps(names), "--inputs", str(own), "--seed", str(options.seed))
        for names in shares
        if names
    ]
    for line in _lines(children):
        told = json.loads(line)
        total += sum(told["outcomes"].values())
        failed += len(told["failures"])
        _show(told)
    failed += sum(child.wait() != 0 for child in children)
    if guided:
        counted, bad = _guided(chosen, options, weights)
        total, failed = total + counted, failed + bad
    else:
        print(
            "atheris is not installed (pip install fedelmy[fuzz]): its share went to the other engines"
        )
    print(f"{total} inputs in {time.monotonic() - begun:.0f} s, {failed} failures")
    return 1 if failed else 0


def _guided(chosen: dict[str, Any], options: argparse.Namespace, weights: int) -> tuple[int, int]:
    """How many inputs atheris gave, and how many targets failed."""
    begun, waiting, running = time.monotonic(), list(chosen), []
    counted, failed = 0, 0
    while waiting or running:
        while waiting and len(running) < options.jobs:
            name = waiting.pop(0)
            count = max(50, int(options.inputs * ATHERIS_SHARE) * chosen[name].weight // weights)
            arguments = ("--atheris", name, "--inputs", str(count), "--seed", str(options.seed))
            running.append((name, count, _child(*arguments, quiet=True)))
        name, count, child = running.pop(0)
        _, complaint = child.communicate()
        if child.returncode != 0:
            failed += 1
            print(f"FAILED {name} (atheris)\n{complaint[-3000:]}")
        counted += count
    print(
        f"{'atheris, all targets':<30} {counted:>7} {'':>8} {'':>8} {time.monotonic() - begun:>8.1f}"
    )
    return counted, failed


def _child(*arguments: str, quiet: bool = False) -> subprocess.Popen[str]:
    errors = subprocess.PIPE if quiet else None
    command = [sys.executable, "-m", "tests.fuzz.run", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)


def _lines(children: list[subprocess.Popen[str]]) -> Any:
    import queue
    import threading

    told: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read(child: subprocess.Popen[str]) -> None:
        for line in child.stdout or ():
            told.put(line)
        told.put(None)

    for child in children:
        threading.Thread(target=read, args=(child,), daemon=True).start()
    ended = 0
    while ended < len(children):
        line = told.get()
        if line is None:
            ended += 1
        else:
            yield line


def _stem(name: str) -> str:
    return name.replace(" ", "-").replace("/", "-")


def _show(told: dict[str, Any]) -> None:
    outcomes = told["outcomes"]
    count, accepted = sum(outcomes.values()), outcomes.get("accepted", 0)
    print(
        f"{told['target']:<30} {count:>7} {accepted:>8} {count - accepted:>8} {told['seconds']:>8.1f}"
        f" {told['slowest']:>7.3f}s {told['peak_kb'] / 1024:>6.1f} MB",
        flush=True,
    )
    for data, text in told["failures"]:
        raw = bytes.fromhex(data)
        path = (
            Path("fuzz-failures")
            / f"{_stem(told['target'])}-{hashlib.sha256(raw).hexdigest()[:12]}"
        )
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(raw)
        print(f"FAILED {told['target']}: {path}\n{text}")


if __name__ == "__main__":
    sys.exit(main())
