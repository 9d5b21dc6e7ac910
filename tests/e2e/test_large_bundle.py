"""A bundle of 2 GiB in three groups of different types, on a link that breaks, to a site that dies.

It needs 4 GiB of disk, which are free again at the end.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.support.packages import importable, install_strategy
from tests.e2e.support.proxy import CountingProxy
from tests.e2e.support.testbed import Bed, Site, launched
from tests.e2e.support.witness import Witness, wait_until

HUGE = '''
"""The first site makes a large artifact, the last one a small model of it."""

from fedelmy_node.domain.step_traits import Traits
from fedelmy_node.training.operations import Operation, Result, Takes
from fedelmy_node.training.strategies.fedseq import Settings

PART = (2 << 30) // 3
TYPES = {"single": ("float32", 4), "half": ("bfloat16", 2), "counts": ("int64", 8)}


def groups(device):
    import torch

    def make(dtype, size):
        made = torch.arange(PART // size, dtype=torch.int64, device=device) % 251
        return made.to(getattr(torch, dtype))

    return {name: {"values": make(*kind)} for name, kind in TYPES.items()}


def train(context, settings):
    from fedelmy_node.training.context import Outputs

    return Outputs(groups=groups("cpu"))


def digest(context, settings):
    from fedelmy_node.training.context import Outputs

    (given,) = context.inputs
    total = sum(int(group["values"][:1000].long().sum()) for group in given.groups.values())
    state = context.state_dict(context.initial)
    for tensor in state.values():
        tensor.fill_(total / 1e6)
    return Outputs(model=context.weights(state))


def wire(sites, settings):
    from fedelmy_launcher.plans.topologies.wiring import Wiring, step

    first = step("train", 1, sites[0], (), 1)
    last = step("digest", 2, sites[-1], [first.id])
    return Wiring(steps=(first, last), results=(last.id,))


OPERATIONS = {
    "train": Operation(
        run=train,
        traits=Traits(trains=True),
        output=lambda specs: groups("meta"),
    ),
    "digest": Operation(
        run=digest,
        traits=Traits(reads_data=False),
        inputs={"model": Takes(least=1)},
        is_replaceable=False,
    ),
}
RESULT = Result(operation="digest")
'''
logger = logging.getLogger(__name__)
SIZE = 2 << 30
LIMIT_BYTES = 64 << 20
"""The most that a transfer takes at either end, whatever its size."""


class Memory:
    """What a daemon has resident, from now on."""

    def __init__(self, site: Site) -> None:
        assert site.process is not None
        self._status = Path(f"/proc/{site.process.pid}/status")
        self._began = self._read("VmRSS")
        Path(f"/proc/{site.process.pid}/clear_refs").write_text("5")  # the peak begins anew

    def growth(self) -> int:
        return self._read("VmHWM") - self._began

    def _read(self, key: str) -> int:
        lines = dict(line.split(":", 1) for line in self._status.read_text().splitlines())
        return int(lines[key].split()[0]) << 10


@pytest.mark.full
@pytest.mark.timeout(1800)  # two minutes on a free machine
def test_a_large_bundle_survives_a_cut_and_a_kill_in_little_memory(
    make_bed: Callable[..., Bed], tmp_path: Path
) -> None:
    install_strategy(tmp_path, "huge", HUGE)
    bed = make_bed("north", "south")
    north, south = bed.sites.values()
    with importable(tmp_path):
        south.start()
        with CountingProxy(south.address) as proxy:
            try:
                north.start("--peer", f"south={proxy.address}")
                bed.write_file()
                text = re.sub(
                    r"\[strategy\].*",
                    '[strategy]\nname = "huge"\n',
                    bed.file.read_text(),
                    flags=re.S,
                )
                text = text.replace("seed = 3\n", 'seed = 3\ndeliver = "last"\n')
                bed.file.write_text(re.sub(r"indices = .*\n", "", text))
                _transfer(bed, proxy)
            finally:
                for site in (north, south):
                    site.stop()
                    shutil.rmtree(site.state / "runs", ignore_errors=True)


def _transfer(bed: Bed, proxy: CountingProxy) -> None:
    north, south = bed.sites.values()
    sender, receiver = Witness(north, "huge"), Witness(south, "huge")
    output = sender.step_directory("train.1@north") / "output.safetensors"
    with launched(bed, "huge") as launcher:
        wait_until(lambda: output.exists() or launcher.poll() is not None, "large bundle", 900)
        assert output.exists(), launcher.communicate()
        proxy.cut_at(proxy.to_target + SIZE * 2 // 5)
        before, memory = proxy.to_target, {"sender": Memory(north), "receiver": Memory(south)}
        grown: dict[str, int] = {}
        wait_until(lambda: proxy.to_target - before > SIZE * 7 // 10, "seven tenths", 600)
        grown["receiver that was killed"] = memory["receiver"].growth()
        south.kill()
        south.start(listen=south.address)
        memory["receiver"] = Memory(south)
        with output.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        received = wait_until(lambda: receiver.find("received"), "large bundle at south", 900)
        grown |= {name: known.growth() for name, known in memory.items()}
        out, err = launcher.communicate(timeout=900)
    assert launcher.returncode == 0, err
    assert received.data["sha256"] == sha256 and received.data["bytes"] > SIZE - 100
    assert proxy.cuts == 1 and len(sender.events(kind="retry")) >= 2
    assert proxy.to_target - before < 1.2 * SIZE, "it went on where it was"
    (sent,) = sender.events(kind="sent")
    mebibytes = {name: size >> 20 for name, size in grown.items()}
    logger.info("%.0f s, memory in MiB: %s", received.time - output_done(sender), mebibytes)
    assert sent.data["sha256"] == sha256
    assert max(grown.values()) < LIMIT_BYTES, grown
    assert json.loads(out.splitlines()[-1])["state"] == "done"


def output_done(sender: Witness) -> float:
    (done,) = (
        e for e in sender.events() if e.step == "train.1@north" and e.has("step", state="done")
    )
    return done.time
