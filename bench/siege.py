"""What an honest hand-over costs while one process attacks the same node: speed beside speed, in
the same run.

    python bench/siege.py [--json] [--seconds 60] [--transfers 6] [--directory DIR]

A real daemon (site south) takes bundles from site north: first alone, then while a process with the
valid certificate of a third site keeps 200 connections open that stall, floods it with Begin calls
on 8 connections, and sends streams and calls at one byte a second. Reported: the median speed of a
hand-over (connecting included) alone and under siege, their ratio, how long the operator waits for
Describe, and the most memory that the daemon had.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedelmy_launcher.ca import authority
from fedelmy_launcher.plans.compiler import compile_plan
from fedelmy_node.bundle.format import read_header
from fedelmy_node.config.decode import canonical_json, decode
from fedelmy_node.domain.artifact import Offer, Origin, Parcel
from fedelmy_node.domain.blocks import BLOCK_BYTES
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import Address, EdgeId, SiteName, StepId, edge_ends, run_id
from fedelmy_node.domain.plan import Neighbour, Slice
from fedelmy_node.domain.plan_steps import Edge, Step
from fedelmy_node.domain.reports import Signed
from fedelmy_node.domain.step_traits import TRAIN
from fedelmy_node.identity import keystore
from fedelmy_node.identity.signatures import Purpose, sign
from fedelmy_node.rpc import convert_transfers
from fedelmy_node.rpc.channel import open_channel
from fedelmy_node.rpc.clients import OperatorClient, PeerClient

MODEL, TARGET_RATIO = "torchvision:resnet50", 0.5
NOWHERE = Address("127.0.0.1:9")
SITES = ("north", "east", "west", "south")
RUN, SOUTH = run_id("siege"), SiteName("south")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long the siege lasts")
    parser.add_argument(
        "--transfers",
        type=int,
        default=6,
        help="hand-overs alone, and at least so many under siege",
    )
    parser.add_argument(
        "--directory", type=Path, help="on the disk to measure; the system's own by default"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        field = Field(Path(scratch))
        try:
            field.prepare()
            found = measure(field, options.seconds, options.transfers)
        finally:
            field.close()
    show(found)
    if options.json:
        print(json.dumps({"bench": "siege", **found}))


class Field:
    """One daemon, and the identities of those who call it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sent = 0
        authority.init(root / "ca")
        for name in SITES:
            home = self.home(name)
            keystore.init(home, name, "site")
            keystore.install(
                home, authority.sign(root / "ca", home / "request.csr", root / f"{name}.pem").path
            )
        self.daemon, self.address = self._start()

    def home(self, name: str) -> Path:
        return self.root / name / "identity"

    def _start(self) -> tuple[subprocess.Popen[bytes], Address]:
        path = self.root / "ready"
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready,
            (self.root / "log").open("wb") as log,
        ):
            ready.bind(str(path))
            ready.settimeout(60)
            state = str(self.root / "south")
            daemon = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "fedelmy_node",
                    "serve",
                    "--state",
                    state,
                    "--listen",
                    "127.0.0.1:0",
                    "--data",
                    "digits",
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "NOTIFY_SOCKET": str(path)},
            )
            told = dict(line.split("=", 1) for line in ready.recv(4096).decode().splitlines())
        return daemon, Address(told["X_FEDELMY_ADDRESS"])

    def close(self) -> None:
        self.daemon.terminate()
        self.daemon.wait(60)

    def operator(self) -> OperatorClient:
        identity = keystore.load(self.root / "ca" / "operator")
        return OperatorClient(open_channel(self.address, identity, expect_role="site"), "south")

    def prepare(self) -> None:
        """South takes many bundles from north and from east; what it needs from west never comes,
        so it only takes.
        """
        plan = compile_plan(_federation(), RUN)
        needs = [StepId(f"train.{n}@{site}") for site in ("north", "east") for n in range(1, 61)]
        west = StepId("train.9@west")
        steps = [
            Step(id=StepId(f"train.{n}@south"), site=SOUTH, kind=TRAIN, visit=n, needs=(need, west))
            for n, need in enumerate(needs, 1000)
        ]
        edges = [
            Edge(
                source=need,
                target=step.id,
                sender=SiteName(need.partition("@")[2]),
                receiver=SOUTH,
                carries=TRAIN,
                need=need,
                ends=True,
            )
            for step in steps
            for need in step.needs
        ]
        part = Slice(
            contract=plan.contract,
            run=RUN,
            federation="siege",
            site=SOUTH,
            recipe=plan.recipe,
            steps=tuple(steps),
            edges_in=tuple(edges),
            edges_out=(),
            neighbours=tuple(
                Neighbour(site=SiteName(s), address=NOWHERE) for s in ("east", "north", "west")
            ),
        )
        payload = canonical_json(part)
        signature = sign(
            keystore.load(self.root / "ca" / "operator"), payload, purpose=Purpose.PLAN
        )
        client = self.operator()
        client.prepare(
            Signed(
                payload=payload, signature=signature.value, certificate=signature.certificate_pem
            )
        )
        client.close()
        self.edges = {site: [e.id for e in edges if e.sender == site] for site in ("north", "east")}
        self.bundle = self._make_bundle()

    def _make_bundle(self) -> Path:
        """Zeros of the right shapes: what the model holds does not matter here."""
        code = (
            "import sys, torchvision; from pathlib import Path\n"
            "from fedelmy_node.training.bundle_file import write_bundle\n"
            "model = torchvision.models.resnet50(num_classes=10)\n"
            "write_bundle(Path(sys.argv[1]), {'model': {k: v * 0 for k, v in model.state_dict().items()}})"
        )
        path = self.root / "bundle.safetensors"
        subprocess.run([sys.executable, "-c", code, str(path)], check=True)
        with path.open("rb") as file:
            self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return path

    def offer(self, edge: EdgeId) -> Offer:
        return Offer(
            run=RUN,
            edge=edge,
            size=self.bundle.stat().st_size,
            sha256=self.sha256,
            block_bytes=BLOCK_BYTES,
            wire_dtype="float32",
            manifest=read_header(self.bundle).manifest,
            origin=Origin(contributors=(edge_ends(edge)[0] or StepId(""),)),
        )

    def hand_over(self) -> float:
        """One bundle from north, as a courier brings it: with a connection of its own. MB/s."""
        edge, self.sent = self.edges["north"][self.sent], self.sent + 1
        parcel = Parcel(offer=self.offer(edge), path=self.bundle)
        begun = time.monotonic()
        identity = keystore.load(self.home("north"))
        channel = open_channel(self.address, identity, expect_role="site", expect_site=SOUTH)
        client = PeerClient(channel, SOUTH, 60)
        try:
            client.deliver(parcel, lambda _: None)
        finally:
            client.close()
        return parcel.offer.size / (time.monotonic() - begun) / 1e6

    def describe(self) -> float:
        begun = time.monotonic()
        client = self.operator()
        client.describe()
        client.close()
        return time.monotonic() - begun

    def resident(self) -> int:
        """Bytes, now."""
        lines = Path(f"/proc/{self.daemon.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) * 1024

    def besiege(self) -> subprocess.Popen[str]:
        offers = self.root / "offers"
        messages = [
            convert_transfers.offer_to_pb(replace(self.offer(edge), run=run)).SerializeToString()
            for edge in self.edges["east"][:20]
            for run in (RUN, run_id("nobody"))
        ]
        offers.write_text("\n".join(base64.b64encode(message).decode() for message in messages))
        attacker = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bench.ends.siege",
                self.address,
                str(self.home("east")),
                str(offers),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert attacker.stdout is not None and attacker.stdout.readline() == "ready\n"
        return attacker


def measure(field: Field, seconds: float, transfers: int) -> dict[str, Any]:
    field.hand_over()  # imports, page cache
    alone = [field.hand_over() for _ in range(transfers)]
    waits_alone = [field.describe() for _ in range(transfers)]
    resident = [field.resident()]
    attacker = field.besiege()
    end = time.monotonic() + seconds
    time.sleep(min(5.0, seconds / 4))  # until everything is under way
    besieged: list[float] = []
    waits: list[float] = []
    while time.monotonic() < end or len(besieged) < transfers:
        besieged.append(field.hand_over())
        waits.append(field.describe())
        resident.append(field.resident())
        time.sleep(1.0)
    answer, _ = attacker.communicate()
    return {
        "bundle_bytes": field.bundle.stat().st_size,
        "alone_mb_s": round(statistics.median(alone), 1),
        "besieged_mb_s": round(statistics.median(besieged), 1),
        "ratio": round(statistics.median(besieged) / statistics.median(alone), 3),
        "worst_besieged_mb_s": round(min(besieged), 1),
        "describe_alone_seconds": round(statistics.median(waits_alone), 3),
        "describe_besieged_seconds": round(statistics.median(waits), 3),
        "resident_before_bytes": resident[0],
        "resident_most_bytes": max(resident),
        "resident_last_bytes": resident[-1],
        "transfers_besieged": len(besieged),
        "attacker": json.loads(answer),
    }


def show(found: dict[str, Any]) -> None:
    print(f"{'':12} {'MB/s':>8} {'describe s':>11} {'resident MB':>12}")
    for name, memory in (("alone", "before"), ("besieged", "most")):
        speed, wait = found[f"{name}_mb_s"], found[f"describe_{name}_seconds"]
        print(f"{name:12} {speed:>8} {wait:>11} {found[f'resident_{memory}_bytes'] / 1e6:>12.1f}")
    print(
        f"ratio {found['ratio']} (target: at least {TARGET_RATIO}); slowest {found['worst_besieged_mb_s']} MB/s"
    )
    print(f"the attacker: {found['attacker']}")


def _federation() -> Federation:
    return decode(
        Federation,
        {
            "name": "siege",
            "topology": "chain",
            "order": "listed",
            "deliver": "last",
            "members": [{"name": name, "address": "127.0.0.1:9"} for name in SITES],
            "recipe": {
                "seed": 0,
                "model": {"name": MODEL},
                "strategy": {"name": "fedelmy"},
                "training": {"epochs": 1},
                "task": {
                    "classes": [str(n) for n in range(10)],
                    "input": {"height": 64, "width": 64, "channels": 3},
                },
            },
        },
    )


if __name__ == "__main__":
    main()
