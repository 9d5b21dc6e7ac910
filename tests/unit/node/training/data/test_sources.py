"""The registry of sources, and the loaders whose files have a binary format of their own."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedelmy_node.domain.errors import DataError
from fedelmy_node.training.data import SOURCES, Source, parse_source
from fedelmy_node.training.data.public_datasets import CIFAR10_CLASSES, FASHION_MNIST_CLASSES
from fedelmy_node.training.data.sources import RawData, load_source, source_labels


def _load(text: str) -> RawData:
    return load_source(parse_source(text))


def _code(text: str) -> str:
    """The code with which a source is refused, be it at the labels or only at the images."""
    with pytest.raises(DataError) as caught:
        raw = _load(text)
        raw.pool.images.read(np.arange(1))
    return caught.value.code


# --- parse_source


def test_sources_are_kind_and_path() -> None:
    assert parse_source("digits") == Source(kind="digits")
    assert parse_source("imagefolder:/data/x:ray") == Source(
        kind="imagefolder", path=Path("/data/x:ray")
    )


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("digit", "Did you mean digits?"),
        ("ImageFolder:/data", "Did you mean imagefolder:DIRECTORY?"),
        ("cifar-10:/data", "Did you mean cifar10:DIRECTORY?"),
        ("/data/xray", "imagefolder:DIRECTORY"),
        ("", "Known kinds: digits"),
        ("digits:/data", "Write digits."),
        ("digits:", "Write digits."),
        ("npz", "Write npz:FILE."),
        ("npz:", "Write npz:FILE."),
    ],
)
def test_a_wrong_source_is_refused_with_the_right_spelling(text: str, hint: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_source(text)
    assert caught.value.code == "E-DATA-SOURCE"
    assert hint in caught.value.hint


def test_every_registered_loader_exists() -> None:
    from importlib import import_module

    for kind in SOURCES.values():
        module, _, function = kind.loader.partition(":")
        assert callable(getattr(import_module(module), function))
        assert kind.description


def _modules_after(code: str) -> set[str]:
    code = f"{code}\nimport sys\nsys.stdout.write(' '.join(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    return set(done.stdout.split())


def test_checking_a_source_imports_nothing_heavy() -> None:
    loaded = _modules_after(
        "import fedelmy_node.training.data.indices\n"
        "from fedelmy_node.training.data import parse_source\n"
        "parse_source('imagefolder:/data')"
    )
    assert not loaded & {"torch", "numpy", "PIL", "sklearn"}


def test_labels_are_read_without_torch() -> None:
    loaded = _modules_after(
        "import fedelmy_launcher.simulate.partition\n"
        "from fedelmy_node.training.data.sources import source_labels\n"
        "assert len(source_labels('digits')[1]) == 1797"
    )
    assert "torch" not in loaded


# --- digits


def test_digits_use_the_whole_range_of_a_byte() -> None:
    raw = _load("digits")
    images = raw.pool.images.read(np.arange(1797))
    assert raw.classes == tuple("0123456789") and raw.test is None
    assert images.shape == (1797, 8, 8) and images.dtype == np.uint8
    # The first digit is a 0 whose first row is 0 0 5 13 9 1 0 0 of 16.
    assert raw.pool.labels[0] == 0
    assert images[0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]
    assert images.max() == 255


# --- idx: MNIST, Fashion-MNIST


def _idx(array: np.ndarray[Any, Any]) -> bytes:
    return (
        bytes((0, 0, 8, array.ndim))
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def _write_idx(
    directory: Path, *, zipped: bool = False, separator: str = "-"
) -> np.ndarray[Any, Any]:
    directory.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (7, 28, 28), dtype=np.uint8)
    labels = np.array([3, 0, 9, 3, 1, 2, 5], np.uint8)
    for prefix, part in (("train", slice(0, 5)), ("t10k", slice(5, 7))):
        for stem, suffix, array in (
            ("images", "idx3", images[part]),
            ("labels", "idx1", labels[part]),
        ):
            path = directory / f"{prefix}-{stem}{separator}{suffix}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(_idx(array)) if zipped else _idx(array))
    return images


@pytest.mark.parametrize(
    ("zipped", "separator"), [(False, "-"), (True, "-"), (False, "."), (True, ".")]
)
def test_idx_files_as_mirrors_name_them(tmp_path: Path, zipped: bool, separator: str) -> None:
    images = _write_idx(tmp_path / "d", zipped=zipped, separator=separator)
    raw = _load(f"fashion-mnist:{tmp_path}/d")
    assert raw.classes == FASHION_MNIST_CLASSES and raw.classes[9] == "Ankle boot"
    assert raw.pool.labels.tolist() == [3, 0, 9, 3, 1]
    assert np.array_equal(raw.pool.images.read(np.arange(5)), images[:5])
    assert raw.test is not None and raw.test.labels.tolist() == [2, 5]
    assert np.array_equal(raw.test.images.read(np.array([1])), images[6:7])


def test_mnist_has_digits_for_names(tmp_path: Path) -> None:
    _write_idx(tmp_path / "d")
    assert source_labels(f"mnist:{tmp_path}/d")[0] == tuple("0123456789")


def test_labels_of_idx_need_no_images(tmp_path: Path) -> None:
    _write_idx(tmp_path / "d")
    (tmp_path / "d/train-images-idx3-ubyte").write_bytes(b"")
    assert source_labels(f"mnist:{tmp_path}/d")[1].tolist() == [3, 0, 9, 3, 1]
    assert _code(f"mnist:{tmp_path}/d") == "E-DATA-FORMAT"


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("train-labels-idx1-ubyte", None, "E-DATA-MISSING"),
        ("t10k-images-idx3-ubyte", None, "E-DATA-MISSING"),
        ("train-labels-idx1-ubyte", b"\0\0\x08\x01\0\0", "E-DATA-FORMAT"),
        ("train-labels-idx1-ubyte", b"\0\0\x08\x01\0\0\0\x05\1\1\1", "E-DATA-FORMAT"),
        ("train-labels-idx1-ubyte", _idx(np.full(5, 10, np.uint8)), "E-DATA-FORMAT"),
        ("train-labels-idx1-ubyte", _idx(np.zeros(4, np.uint8)), "E-DATA-FORMAT"),
        ("train-labels-idx1-ubyte", _idx(np.zeros(0, np.uint8)), "E-DATA-EMPTY"),
        ("train-images-idx3-ubyte", _idx(np.zeros((5, 28), np.uint8)), "E-DATA-FORMAT"),
        ("train-images-idx3-ubyte", b"\0\0\x08\x03" + b"\xff" * 12, "E-DATA-FORMAT"),
    ],
)
def test_a_damaged_idx_file_is_named(
    tmp_path: Path, name: str, content: bytes | None, code: str
) -> None:
    _write_idx(tmp_path / "d")
    path = tmp_path / "d" / name
    path.unlink() if content is None else path.write_bytes(content)
    assert _code(f"mnist:{tmp_path}/d") == code


def test_a_cut_off_gzip_is_refused(tmp_path: Path) -> None:
    _write_idx(tmp_path / "d", zipped=True)
    path = tmp_path / "d/train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    assert _code(f"mnist:{tmp_path}/d") == "E-DATA-FORMAT"


# --- CIFAR-10


def _write_cifar10(directory: Path, *, records: int = 2) -> np.ndarray[Any, Any]:
    """Six files in the authors' layout; gives the planes (files * records, 3, 32, 32)."""
    directory.mkdir(parents=True)
    planes = np.random.default_rng(1).integers(0, 256, (6 * records, 3, 32, 32), dtype=np.uint8)
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    for file, name in enumerate(names):
        numbers = range(file * records, (file + 1) * records)
        (directory / name).write_bytes(
            b"".join(bytes([n % 10]) + planes[n].tobytes() for n in numbers)
        )
    return planes


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin"])
def test_cifar10_binary_files(tmp_path: Path, inside: str) -> None:
    planes = _write_cifar10(tmp_path / "c" / inside)
    raw = _load(f"cifar10:{tmp_path}/c")
    assert raw.classes == CIFAR10_CLASSES and raw.classes[3] == "cat"
    assert raw.pool.labels.tolist() == list(range(10))
    assert raw.test is not None and raw.test.labels.tolist() == [0, 1]
    assert np.array_equal(
        raw.pool.images.read(np.array([9, 4])), planes[[9, 4]].transpose(0, 2, 3, 1)
    )
    assert np.array_equal(raw.test.images.read(np.arange(2)), planes[10:].transpose(0, 2, 3, 1))


def test_the_pickled_cifar10_is_recognised_and_not_read(tmp_path: Path) -> None:
    for name in ("data_batch_1", "test_batch"):
        (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(DataError, match=r"no data_batch_1\.bin") as caught:
        _load(f"cifar10:{tmp_path}")
    assert "binary version" in caught.value.hint


@pytest.mark.parametrize("content", [b"", b"\0" * 3072, bytes([10]) + b"\0" * 3072])
def test_a_damaged_cifar10_file_is_refused(tmp_path: Path, content: bytes) -> None:
    _write_cifar10(tmp_path / "c")
    (tmp_path / "c/data_batch_2.bin").write_bytes(content)
    assert _code(f"cifar10:{tmp_path}/c") == "E-DATA-FORMAT"


# --- npz

IMAGES = np.arange(4 * 2 * 3, dtype=np.uint8).reshape(4, 2, 3)


def _write_npz(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return f"npz:{path}"


def test_npz_integers_are_named_by_their_text(tmp_path: Path) -> None:
    raw = _load(_write_npz(tmp_path / "a.npz", images=IMAGES, labels=np.array([7, -1, 10, 7])))
    assert raw.classes == ("-1", "7", "10")
    assert raw.pool.labels.tolist() == [1, 0, 2, 1]
    assert np.array_equal(raw.pool.images.read(np.array([2])), IMAGES[2:3])


@pytest.mark.parametrize("labels", [["cat", "ape", "cat", "bee"], [b"cat", b"ape", b"cat", b"bee"]])
def test_npz_texts_are_names(tmp_path: Path, labels: list[Any]) -> None:
    raw = _load(_write_npz(tmp_path / "a.npz", x=IMAGES, y=np.array(labels)))
    assert [raw.classes[label] for label in raw.pool.labels] == ["cat", "ape", "cat", "bee"]


@pytest.mark.parametrize("labels", [[2, 0, 0, 1], ["bee", "cat", "cat", "ape"]])
def test_npz_classes_name_the_labels(tmp_path: Path, labels: list[Any]) -> None:
    text = _write_npz(
        tmp_path / "a.npz", images=IMAGES, labels=np.array(labels), classes=["cat", "ape", "bee"]
    )
    raw = _load(text)
    assert [raw.classes[label] for label in raw.pool.labels] == ["bee", "cat", "cat", "ape"]


def test_npz_brings_its_own_test_set(tmp_path: Path) -> None:
    text = _write_npz(
        tmp_path / "a.npz",
        images=IMAGES,
        labels=[0, 1, 0, 1],
        test_images=IMAGES[:1, :1],
        test_labels=[2],
    )
    raw = _load(text)
    assert raw.classes == ("0", "1", "2") and raw.test is not None
    assert raw.test.labels.tolist() == [2]
    assert raw.test.images.read(np.array([0])).shape == (1, 1, 3)


@pytest.mark.parametrize(
    "arrays",
    [
        {"images": IMAGES},
        {"labels": [1, 2, 3, 4]},
        {"images": IMAGES, "x": IMAGES, "labels": [1, 2, 3, 4]},
        {"images": IMAGES, "labels": [1, 2, 3]},
        {"images": IMAGES, "labels": [0.0, 1.0, 0.0, 1.0]},
        {"images": IMAGES, "labels": [[0, 1, 0, 1]]},
        {"images": IMAGES, "labels": [0, 1, 0, 2], "classes": ["a", "b"]},
        {"images": IMAGES, "labels": [0, -1, 0, 1], "classes": ["a", "b"]},
        {"images": IMAGES, "labels": ["a", "b", "a", "c"], "classes": ["a", "b"]},
        {"images": IMAGES, "labels": [0, 1, 0, 1], "classes": ["a", "a"]},
        {"images": IMAGES, "labels": [0, 1, 0, 1], "classes": [0, 1]},
        {"images": IMAGES, "labels": [0, 1, 0, 1], "test_images": IMAGES},
        {
            "images": IMAGES,
            "labels": [0, 1, 0, 1],
            "test_images": IMAGES,
            "test_labels": list("abab"),
        },
        {"images": np.zeros((4, 3, 8, 8), np.uint8), "labels": [0, 1, 0, 1]},
        {"images": np.zeros(4, np.uint8), "labels": [0, 1, 0, 1]},
        {"images": np.zeros((4, 0, 8), np.uint8), "labels": [0, 1, 0, 1]},
    ],
)
def test_an_npz_that_does_not_fit_is_refused(tmp_path: Path, arrays: dict[str, Any]) -> None:
    assert _code(_write_npz(tmp_path / "a.npz", **arrays)) == "E-DATA-FORMAT"


def test_an_npz_that_would_have_to_be_unpickled_is_refused(tmp_path: Path) -> None:
    objects = np.array([{"run": "code"}, 1, 2, 3], object)
    assert _code(_write_npz(tmp_path / "a.npz", images=IMAGES, labels=objects)) == "E-DATA-FORMAT"


def test_what_is_no_npz_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", IMAGES)
    (tmp_path / "b.npz").write_bytes(b"PK\x03\x04rubbish")
    assert _code(f"npz:{tmp_path}/a.npy") == "E-DATA-FORMAT"
    assert _code(f"npz:{tmp_path}/b.npz") == "E-DATA-FORMAT"
    assert _code(f"npz:{tmp_path}/none.npz") == "E-DATA-MISSING"
    assert (
        _code(_write_npz(tmp_path / "e.npz", images=IMAGES[:0], labels=np.empty(0, int)))
        == "E-DATA-EMPTY"
    )
