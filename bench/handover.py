"""What a hand-over costs beyond moving the bytes: between two real nodes over mutual TLS on
loopback.

    python bench/handover.py [--json] [--only training|relay] [--sizes BYTES,...]

training   ResNet-18 (45 MB) from north to south: from the end of training at north to the first optimizer step at
           south (its BEGUN event: the first batch is there and is computed), beside the transfer itself (the seconds
           of north's SENT event).
relay      no training at all: a plan of deliver steps, whose output is their input, sends one bundle to and fro. Both
           journals are given that plan, and a first step that is done, before the nodes start; the rest is theirs.
           A hop is the time from one RECEIVED to the next; memory is the peak of both nodes above their idle state.
           The transfer is what SENT says: connection, Begin, blocks, verification, receipt. So the whole hop of the
           smallest bundle is what a hop costs at least.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tests.e2e.support.testbed import Bed, Site
from tests.e2e.support.witness import Seen, Witness, wait_until
from tests.support.journal_writes import finish_step, set_run

from fedelmy_launcher.plans.compiler import signed_slices
from fedelmy_node import CONTRACT
from fedelmy_node.domain.artifact import TensorInfo
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.federation import (
    InputFormat,
    ModelSpec,
    Recipe,
    StrategySpec,
    Task,
    Training,
)
from fedelmy_node.domain.names import Address, RunId, SiteName, StepId
from fedelmy_node.domain.plan import Neighbour, Plan
from fedelmy_node.domain.plan_steps import Step
from fedelmy_node.domain.step_traits import DELIVER, TRAIN
from fedelmy_node.identity import keystore
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import Prepared
from fedelmy_node.store.state_directory import Layout

NAMES = ("north", "south")
SIZES = (4 << 10, 45_000_000, 1 << 30)
HOPS = {4 << 10: 21, 45_000_000: 7}
FEWEST_HOPS = 3
"""The first one is left out: it waits for the nodes to start."""
TARGETS = {"training_seconds": 0.5, "hop_seconds": 0.05, "memory_bytes": 200e6}
"""Above the transfer, above the transfer, above idle."""
SAMPLES = 20
"""Per site; without validation and test data, one batch."""
FEDERATION = """
[task]
classes = ["0", "1"]
input = { height = 32, width = 32, channels = 3 }

[model]
name = "resnet18-cifar"

[training]
epochs = 20
learning_rate = 1e-3
batch_size = 16
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
    parser.add_argument("--only", choices=("training", "relay"))
    parser.add_argument(
        "--sizes", help="of the relayed bundles, in bytes", default=",".join(map(str, SIZES))
    )
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    training = measure_training() if options.only != "relay" else None
    if training is not None:
        show_training(training)
    relay = [measure_relay(size) for size in sizes] if options.only != "training" else []
    show_relay(relay)
    if options.json:
        print(
            json.dumps(
                {"bench": "handover", "targets": TARGETS, "training": training, "relay": relay}
            )
        )


@contextlib.contextmanager
def provisioned() -> Iterator[Bed]:
    root = Path(tempfile.mkdtemp(prefix="fedelmy-handover-"))
    bed = Bed(root, NAMES)
    try:
        bed.provision()
        yield bed
    finally:
        bed.close()
        shutil.rmtree(root)


def start(bed: Bed, site: Site) -> None:
    """Each with the other as its peer, where that one is known to be."""
    peers = [
        f"--peer={name}={other.address}" for name, other in bed.sites.items() if other is not site
    ]
    known = [peer for peer in peers if not peer.endswith("=")]
    site.start(*known, data=f"npz:{site.name}.npz", listen=site.address or "127.0.0.1:0")


# --- training
# ---------------------------------------------------------------------------------------------


def measure_training() -> dict[str, Any]:
    """Seconds of one hand-over in a chain of two."""
    with provisioned() as bed:
        random = np.random.default_rng(1)
        for name in NAMES:
            images = random.integers(0, 256, (SAMPLES, 32, 32, 3), dtype=np.uint8)
            np.savez(bed.root / f"{name}.npz", images=images, labels=np.arange(SAMPLES) % 2)
        for name in reversed(NAMES):
            start(bed, bed.sites[name])
        sites = "".join(
            f'\n[[sites]]\nname = "{name}"\naddress = "{site.address}"\n'
            for name, site in bed.sites.items()
        )
        bed.file.write_text(f'[federation]\nname = "bench"\nseed = 1\n{sites}{FEDERATION}')
        bed.launch("run", "--json", "--run", "bench").ok()
        north, south = (Witness(bed.sites[name], "bench") for name in NAMES)
        return timeline(north, south)


def timeline(north: Witness, south: Witness) -> dict[str, Any]:
    """Both nodes have one clock: everything is seconds after the end of training at north."""
    trained, sent = one(north, "member", member=1), one(north, "sent")
    done = one(north, "step", "train.1@north", state="done").time
    ready, running = (
        one(south, "ready", "train.2@south"),
        one(south, "step", "train.2@south", state="running"),
    )
    first_step = one(south, "begun", "train.2@south").time
    return {
        "bundle_bytes": sent.data["bytes"],
        "transfer_seconds": sent.data["seconds"],
        "averaged_and_written_seconds": round(done - trained.time, 3),
        "received_seconds": round(one(south, "received").time - done, 3),
        "running_seconds": round(running.time - done, 3),
        "first_step_seconds": round(first_step - done, 3),
        "above_transfer_seconds": round(first_step - done - sent.data["seconds"], 3),
        "ready_seconds": round(ready.time - done, 3),
    }


def one(witness: Witness, kind: str, step: str = "", **data: Any) -> Seen:
    seen = witness.find(kind, step, **data)
    assert seen is not None, f"no event {kind} {data} at {witness.site.name}"
    return seen


def show_training(row: dict[str, Any]) -> None:
    print(
        f"ResNet-18, {row['bundle_bytes'] / 1e6:.1f} MB; seconds after the end of training (step done at north)"
    )
    print(f"  transfer                  {row['transfer_seconds']:>8.3f}")
    print(f"  received at south         {row['received_seconds']:>8.3f}")
    print(f"  step running at south     {row['running_seconds']:>8.3f}")
    print(f"  first optimizer step      {row['first_step_seconds']:>8.3f}")
    print(
        f"  above the transfer        {row['above_transfer_seconds']:>8.3f}   target {TARGETS['training_seconds']}"
    )
    print(f"before it: averaging and writing {row['averaged_and_written_seconds']:.3f}", end="")
    print(f"; south's trainer was ready at {row['ready_seconds']:.3f}")


# --- relay
# ------------------------------------------------------------------------------------------------


def measure_relay(size: int) -> dict[str, Any]:
    """One bundle to and fro between two nodes."""
    hops = HOPS.get(size, FEWEST_HOPS)
    with provisioned() as bed:
        for name in (
            *reversed(NAMES),
            NAMES[-1],
        ):  # the last one again, once it can be told where the first is
            if bed.sites[name].process is not None:
                bed.sites[name].stop()
            start(bed, bed.sites[name])
        idle = sum(memory_bytes(site, "VmRSS") for site in bed.sites.values())
        for site in bed.sites.values():
            site.stop()
        journal_plan(bed, relay_plan(bed, hops), size)
        for name in reversed(NAMES):
            start(bed, bed.sites[name])
        witnesses = [Witness(bed.sites[name], "relay") for name in NAMES]
        wait_until(
            lambda: {w.state() for w in witnesses} == {"done"}, "end of the relay", 600, every=0.2
        )
        peak = sum(memory_bytes(site, "VmHWM") for site in bed.sites.values())
        events = [event for witness in witnesses for event in witness.events()]
    received = sorted(event.time for event in events if event.kind == "received")
    sent = [
        event.data["seconds"]
        for event in sorted(events, key=lambda e: e.time)
        if event.kind == "sent"
    ][1:]
    hop = statistics.median(later - earlier for earlier, later in itertools.pairwise(received))
    transfer = statistics.median(sent)
    return {
        "bundle_bytes": size,
        "hops": hops,
        "hop_seconds": round(hop, 4),
        "transfer_seconds": round(transfer, 4),
        "above_transfer_seconds": round(hop - transfer, 4),
        "ratio": round(hop / transfer, 3),
        "megabytes_per_second": round(size / transfer / 1e6, 1),
        "idle_bytes": idle,
        "peak_above_idle_bytes": peak - idle,
    }


def relay_plan(bed: Bed, hops: int) -> Plan:
    """train.1@north -> deliver.1@south -> deliver.2@north -> ..."""
    steps = [
        Step(id=StepId("train.1@north"), site=SiteName("north"), kind=TRAIN, visit=1, needs=())
    ]
    for number in range(1, hops + 1):
        site = SiteName(NAMES[number % 2])
        name = StepId(f"deliver.{number}@{site}")
        steps.append(Step(id=name, site=site, kind=DELIVER, visit=0, needs=(steps[-1].id,)))
    recipe = Recipe(
        task=Task(classes=("0", "1"), input=InputFormat(height=8, width=8, channels=1)),
        model=ModelSpec(name="mlp"),
        training=Training(epochs=1),
        strategy=StrategySpec(name="fedelmy"),
        seed=1,
    )
    sites = tuple(
        Neighbour(site=SiteName(name), address=Address(site.address))
        for name, site in bed.sites.items()
    )
    return Plan(
        contract=CONTRACT,
        run=RunId("relay"),
        federation="bench",
        recipe=recipe,
        sites=sites,
        steps=tuple(steps),
    )


def journal_plan(bed: Bed, plan: Plan, size: int) -> None:
    """As if both sites had accepted the plan and begun, and north's only train step were done."""
    import torch

    from fedelmy_node.training.bundle_file import bundle_bytes, manifest_of, write_bundle

    groups = {"model": {"weights": torch.ones(max(1, (size - 256) // 4))}}
    manifest: tuple[TensorInfo, ...] = manifest_of(groups)
    slices = signed_slices(plan, keystore.load(bed.ca / "operator"))
    for name in map(SiteName, NAMES):
        layout = Layout(bed.sites[name].state)
        journal = Journal(layout.journal, name)
        signed = slices[name]
        journal.add_run(
            Prepared(
                payload=signed.payload,
                slice=plan.slice_for(name),
                signature=signed.signature,
                certificate=signed.certificate,
                operator="operator",
                manifest=manifest,
                report={"bundle_bytes": bundle_bytes(groups)},
            )
        )
        if name == NAMES[0]:
            output = layout.output(plan.run, plan.steps[0].id)
            output.parent.mkdir(parents=True)
            sha256, written = write_bundle(output, groups)
            finish_step(journal, plan.run, plan.steps[0].id, sha256, written, {})
        set_run(journal, plan.run, RunState.RUNNING)
        journal.close()


def memory_bytes(site: Site, line: str) -> int:
    assert site.process is not None
    time.sleep(0.2)
    status = Path(f"/proc/{site.process.pid}/status").read_text()
    return 1024 * int(
        next(text.split()[1] for text in status.splitlines() if text.startswith(line))
    )


def show_relay(rows: list[dict[str, Any]]) -> None:
    titles = (
        f"{'bundle':>13} {'hops':>5} {'hop s':>9} {'transfer s':>11} {'above s':>9} {'ratio':>7}"
    )
    if rows:
        print(f"{titles} {'MB/s':>7} {'memory MB':>10}")
    for row in rows:
        print(
            f"{row['bundle_bytes']:>13} {row['hops']:>5} {row['hop_seconds']:>9.3f} {row['transfer_seconds']:>11.3f}"
            f" {row['above_transfer_seconds']:>9.3f} {row['ratio']:>7.2f} {row['megabytes_per_second']:>7.0f}"
            f" {row['peak_above_idle_bytes'] / 1e6:>10.1f}"
        )
    if rows:
        print(
            f"targets: above <= {TARGETS['hop_seconds']} s, memory <= {TARGETS['memory_bytes'] / 1e6:.0f} MB in all"
        )


if __name__ == "__main__":
    os.umask(0o077)
    main()
