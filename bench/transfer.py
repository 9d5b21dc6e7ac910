"""How fast a bundle crosses an edge, and how much memory that takes: ours against plain gRPC, in
the same run.

    python bench/transfer.py [--json] [--rounds N] [--huge] [--no-dtypes] [--directory DIR]

Loopback, TLS on both sides, sender and receiver in processes of their own, the same blocks and
options for all:

    discard   gRPC streams the file, the receiver throws it away write     the receiver writes it
    and syncs it once, unverified ours      PeerClient.deliver to a real Inbox and Journal:
    verified, looked into, synced, journaled pulled    the same to a receiver that cannot be called:
    it waits at the sender, and calls back

Rounds alternate between the four; medians count. Memory is the most that each end had resident
above what it had after its imports and the connection, in processes that carried nothing but one
bundle. At the end: what `wire_dtype` costs in accuracy, in a simulated chain of three sites on
digits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

KINDS = ("discard", "write", "ours", "pulled")
SIZES = {"45 MB": 45_000_000, "1 GiB": 1 << 30}
HUGE = {"4.5 GiB": 9 << 29}
"""One tensor that ends far behind what 32 bits can count; the file is sparse, zeros are finite."""
TARGET_RATIO, TARGET_MEMORY = 0.8, 64 << 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--huge", action="store_true", help="also a bundle of 4.5 GiB (sparse at the sender)"
    )
    parser.add_argument(
        "--dtypes",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="accuracy by wire_dtype",
    )
    parser.add_argument(
        "--directory", type=Path, help="on the disk to measure; the system's own by default"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        root = Path(scratch)
        make_identities(root)
        bundles = {
            name: make_bundle(root / f"{size}.safetensors", size) for name, size in SIZES.items()
        }
        speeds = [measure_speed(root, name, path, options.rounds) for name, path in bundles.items()]
        show_speeds(speeds)
        if options.huge:
            bundles |= {
                name: make_sparse(root / f"{size}.safetensors", size) for name, size in HUGE.items()
            }
        memory = [
            measure_memory(root, kind, name, path)
            for name, path in bundles.items()
            for kind in KINDS[2:]
        ]
        show_memory(memory)
    accuracy = measure_accuracy() if options.dtypes else []
    if options.json:
        print(
            json.dumps(
                {"bench": "transfer", "speed": speeds, "memory": memory, "accuracy": accuracy}
            )
        )


class Ends:
    """Sender and receiver, connected."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._processes: list[subprocess.Popen[str]] = []
        self.cpu: dict[str, list[float]] = {kind: [] for kind in KINDS}
        """Processor seconds of both ends together, per bundle."""

    def __enter__(self) -> Self:
        self.receiver, hello = self._start("receiver")
        self.sender, sender = self._start("sender")
        self.ask(self.sender, "connect", addresses=hello["addresses"])
        self.ask(self.receiver, "wait", address=sender["address"])
        self.ask(self.sender, "meet")
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            assert process.stdin is not None and process.stdout is not None
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()

    def _start(self, end: str) -> tuple[subprocess.Popen[str], Any]:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.ends.transfer", end, str(self._root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process, self._answer(process)

    def ask(self, process: subprocess.Popen[str], do: str, **details: Any) -> Any:
        assert process.stdin is not None
        process.stdin.write(json.dumps({"do": do, **details}) + "\n")
        process.stdin.flush()
        return self._answer(process)

    def carry(self, kind: str, run: str, bundle: Path) -> float:
        """Seconds for one bundle, there and acknowledged."""
        if kind in ("ours", "pulled"):
            self.ask(self.receiver, "prepare", run=run, bundle=str(bundle))
        before = self.cpu_seconds()
        os.sync()  # what earlier rounds left for the disk to do is not this one's
        taken = self.ask(
            self.sender, "send", kind=kind, run=run, bundle=str(bundle), sha256=digest(bundle)
        )
        left = self.ask(self.receiver, "clean", run=run)["sizes"]
        assert left == ([] if kind == "discard" else [bundle.stat().st_size]), left
        self.cpu[kind].append(self.cpu_seconds() - before)
        return float(taken["seconds"])

    def cpu_seconds(self) -> float:
        return sum(float(self.ask(end, "cpu")["seconds"]) for end in (self.sender, self.receiver))

    def memory(self) -> dict[str, Any]:
        return {
            "sender": self.ask(self.sender, "memory"),
            "receiver": self.ask(self.receiver, "memory"),
        }

    @staticmethod
    def _answer(process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            sys.exit(f"an end of the transfer died with code {process.wait()}")
        return json.loads(line)


def measure_speed(root: Path, name: str, bundle: Path, rounds: int) -> dict[str, Any]:
    size, seconds = bundle.stat().st_size, {kind: [] for kind in KINDS}  # type: dict[str, list[float]]
    with Ends(root) as ends:
        for number in range(rounds + 1):
            for kind in KINDS:
                taken = ends.carry(kind, f"run-{os.urandom(4).hex()}", bundle)
                if number > 0:  # the first round warms up: imports, page cache, windows
                    seconds[kind].append(taken)
    speed = {
        kind: round(size / statistics.median(taken) / 1e6, 1) for kind, taken in seconds.items()
    }
    return {
        "size": name,
        **{f"{kind}_mb_s": value for kind, value in speed.items()},
        "ours_to_write": round(speed["ours"] / speed["write"], 3),
        "ours_to_discard": round(speed["ours"] / speed["discard"], 3),
        "pulled_to_ours": round(speed["pulled"] / speed["ours"], 3),
        "cpu_seconds_per_gb": {
            kind: round(statistics.median(used) / size * 1e9, 2) for kind, used in ends.cpu.items()
        },
        "rounds": {
            kind: [round(size / taken / 1e6, 1) for taken in times]
            for kind, times in seconds.items()
        },
    }


def measure_memory(root: Path, kind: str, name: str, bundle: Path) -> dict[str, Any]:
    with Ends(root) as ends:
        idle = ends.memory()
        seconds = ends.carry(kind, f"run-{os.urandom(4).hex()}", bundle)
        peak = ends.memory()
    above = {f"{end}_bytes": peak[end]["peak"] - idle[end]["now"] for end in ("sender", "receiver")}
    return {"size": name, "kind": kind, "seconds": round(seconds, 2), **above}


def measure_accuracy() -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.ends.dtypes"], check=True, capture_output=True, text=True
    )
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{'wire_dtype':10} {'bundle bytes':>13} {'accuracy':>9} {'lost':>8}")
    for row in rows:
        print(
            f"{row['wire_dtype']:10} {row['bytes']:>13} {row['accuracy']:>9.4f} {row['lost']:>8.4f}"
        )
    return rows


def make_identities(root: Path) -> None:
    """A federation's CA and two sites, as operator and sites make them."""
    from fedelmy_launcher.ca import authority
    from fedelmy_node.identity import keystore

    authority.init(root / "ca")
    for name in ("north", "south"):
        home = root / "identities" / name
        keystore.init(home, name, "site")
        keystore.install(
            home, authority.sign(root / "ca", home / "request.csr", root / f"{name}.pem").path
        )


def header(size: int) -> bytes:
    """Of a bundle with one tensor, altogether of about `size` bytes."""
    from fedelmy_node.bundle.format import KEY, metadata_text

    values = size // 4
    entry = {"dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values]}
    text = json.dumps(
        {"__metadata__": {KEY: metadata_text(["model"], {})}, "model/w": entry}
    ).encode()
    return len(text).to_bytes(8, "little") + text


def make_bundle(path: Path, size: int) -> Path:
    import numpy

    random = numpy.random.default_rng(0)
    with path.open("wb") as file:
        file.write(header(size))
        left = size // 4
        while left:
            some = random.random(min(left, 1 << 20), dtype=numpy.float32)
            file.write(some.tobytes())
            left -= some.size
    return path


def make_sparse(path: Path, size: int) -> Path:
    text = header(size)
    path.write_bytes(text)
    os.truncate(path, len(text) + size)
    return path


def digest(path: Path) -> str:
    """Computed once: a step journals it with its bundle."""
    known = path.with_suffix(".sha256")
    if not known.exists():
        with path.open("rb") as file:
            known.write_text(hashlib.file_digest(file, "sha256").hexdigest())
    return known.read_text()


def show_speeds(rows: list[dict[str, Any]]) -> None:
    titles = " ".join(f"{kind:>9}" for kind in KINDS)
    print(f"{'MB/s':8} {titles} {'ours/write':>11} {'ours/discard':>13} {'pulled/ours':>12}")
    for row in rows:
        speeds = " ".join(f"{row[f'{kind}_mb_s']:>9}" for kind in KINDS)
        ratios = (
            f"{row['ours_to_write']:>11} {row['ours_to_discard']:>13} {row['pulled_to_ours']:>12}"
        )
        print(f"{row['size']:8} {speeds} {ratios}")
    print(f"target: ours/write at least {TARGET_RATIO} at 1 GiB")


def show_memory(rows: list[dict[str, Any]]) -> None:
    print(f"\n{'memory above idle, MiB':31} {'sender':>8} {'receiver':>9} {'seconds':>8}")
    for row in rows:
        sender, receiver = (row[f"{end}_bytes"] / 2**20 for end in ("sender", "receiver"))
        print(
            f"{row['size']:24} {row['kind']:6} {sender:>8.1f} {receiver:>9.1f} {row['seconds']:>8}"
        )
    print(f"target: at most {TARGET_MEMORY >> 20} MiB at each end")


if __name__ == "__main__":
    main()
