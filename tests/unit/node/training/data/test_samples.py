"""Data larger than memory: held on disk, trained to the same bytes, gone with the process."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedelmy_node.domain.errors import StoreError
from fedelmy_node.domain.names import SiteName
from fedelmy_node.training.data.samples import Storage, available_bytes
from fedelmy_node.training.data.site_data import SiteData, open_data
from fedelmy_node.training.job import DataSpec
from fedelmy_node.training.loading import load
from fedelmy_node.training.step import run
from tests.support.small_recipes import job, recipe, task

NORTH = SiteName("north")


def test_training_from_disk_gives_the_same_bytes_as_from_memory(tmp_path: Path) -> None:
    spill = tmp_path / "samples"
    outcomes = {}
    for name, more in (("memory", {}), ("disk", {"spill": spill, "memory_bytes": 0})):
        wanted = job("train", recipe(), output=tmp_path / name)
        loaded = load(replace(wanted, data=replace(wanted.data, **more)))
        assert (loaded.data.on_disk > 0) == (name == "disk")
        outcomes[name] = run(loaded, (), lambda *_: None)
    assert outcomes["disk"] == outcomes["memory"]
    assert (tmp_path / "disk").read_bytes() == (tmp_path / "memory").read_bytes()
    assert list(spill.iterdir()) == [], "the file of a running trainer has no name"


def test_only_what_does_not_fit_is_put_on_disk(tmp_path: Path) -> None:
    storage = Storage(tmp_path, 100)
    storage.empty((60,), torch.uint8)
    assert storage.on_disk == 0
    storage.empty((15,), torch.float32)
    assert storage.on_disk == 60
    storage.empty((40,), torch.uint8)
    assert storage.on_disk == 60
    assert storage.empty((0, 3), torch.uint8).shape == (0, 3)


def test_without_a_directory_everything_is_in_memory_and_without_a_limit_half_of_it() -> None:
    assert Storage(None, 0).empty((3, 2), torch.float32).shape == (3, 2)
    assert 2**20 < available_bytes() < 2**50


def test_a_folder_of_8_and_16_bit_files_is_the_same_on_disk(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for number in range(30):
        (folder / str(number % 10)).mkdir(parents=True, exist_ok=True)
        deep = (
            np.full((8, 8), number * 2000, np.uint16)
            if number % 4 == 0
            else np.full((8, 8), number, np.uint8)
        )
        Image.fromarray(deep).save(folder / str(number % 10) / f"{number}.png")
    spec = DataSpec(source=f"imagefolder:{folder}")

    def opened(spec: DataSpec) -> SiteData:
        return open_data(spec, task(), seed=1, site=NORTH)

    memory, disk = opened(spec), opened(replace(spec, spill=tmp_path / "samples", memory_bytes=0))
    assert disk.on_disk and memory.train.images.dtype == torch.float32
    for part in ("train", "validation", "test"):
        one, other = getattr(memory, part), getattr(disk, part)
        assert torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)


def test_a_disk_that_cannot_hold_it_is_named_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        Storage(tmp_path, 0).empty((2**60,), torch.uint8)
    assert caught.value.code in ("E-STORE-DISK", "E-STORE-UNWRITABLE")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("compressed", [False, True])
def test_an_archive_reads_the_same_whether_it_can_be_mapped_or_not(
    tmp_path: Path, compressed: bool, order: str
) -> None:
    images = np.arange(40 * 8 * 8, dtype=np.uint16).reshape(40, 8, 8).copy(order)
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "a.npz", x=images, y=np.arange(40) % 10)
    data = open_data(DataSpec(source=f"npz:{tmp_path}/a.npz"), task(), seed=1, site=NORTH)
    parts = torch.cat([data.train.images, data.validation.images, data.test.images])
    found = sorted((parts * 65535).round().long().flatten().tolist())
    assert found == list(range(40 * 64))


LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
import numpy as np, torch
from fedelmy_node.domain.federation import InputFormat, Task
from fedelmy_node.training.data.site_data import open_data
from fedelmy_node.training.job import DataSpec

torch.set_num_threads(1)
task = Task(classes=("0", "1"), input=InputFormat(height=64, width=64, channels=3))
source, spill = f"npz:{sys.argv[1]}", Path(sys.argv[2])
def total(data):
    return sum(int(p.images[i].sum()) for p in (data.train, data.validation, data.test) for i in range(len(p)))
taken = int(next(l for l in open("/proc/self/status") if l.startswith("VmData")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (taken + (96 << 20),) * 2)
try:
    open_data(DataSpec(source=source), task, seed=1, site="north")
    print("fits")
except (RuntimeError, MemoryError):
    print("does not fit")
data = open_data(DataSpec(source=source, spill=spill, memory_bytes=8 << 20), task, seed=1, site="north")
print(len(data.train), total(data))
"""


def test_a_process_with_too_little_memory_opens_all_of_it(tmp_path: Path) -> None:
    """150 MB of samples where a process may have 96 MiB more than it has; in memory they do not
    fit.
    """
    images = np.random.default_rng(0).integers(0, 256, (12_000, 64, 64, 3), np.uint8)
    np.savez(tmp_path / "large.npz", images=images, labels=np.arange(12_000) % 2)
    arguments = [
        sys.executable,
        "-c",
        LITTLE_MEMORY,
        str(tmp_path / "large.npz"),
        str(tmp_path / "samples"),
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == [
        "does not fit",
        f"9720 {int(images.sum(dtype=np.int64))}",
    ], done.stderr
