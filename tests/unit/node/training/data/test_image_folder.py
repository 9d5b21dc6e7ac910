"""Folders of images: which files are found, in which order, and what becomes of those that cannot
be read.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedelmy_node.domain.errors import DataError
from fedelmy_node.domain.federation import InputFormat, Task
from fedelmy_node.domain.names import SiteName
from fedelmy_node.training.data.image_folder import ImageFiles, load, read_image
from fedelmy_node.training.data.site_data import open_data
from fedelmy_node.training.data.sources import RawSamples, source_labels
from fedelmy_node.training.job import DataSpec

SITE = SiteName("north")
TASK = Task(classes=("cat", "dog"), input=InputFormat(height=2, width=2, channels=1))


def _picture(path: Path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (2, 2), value).save(path)


def _names(samples: RawSamples) -> list[str]:
    assert isinstance(samples.images, ImageFiles)
    return list(samples.images.names)


def test_files_are_found_in_the_order_of_code_points(tmp_path: Path) -> None:
    names = [
        "dog/b.PNG",
        "dog/Z.png",
        "dog/a.jpg",
        "dog/ä.bmp",
        "cat/10.tiff",
        "cat/9.webp",
        "cat/x/1.gif",
    ]
    for name in names:
        _picture(tmp_path / name)
    for name in ("cat/.hidden.png", ".cache/1.png", "dog/.thumbs/1.png", "loose.png"):
        _picture(tmp_path / name)
    (tmp_path / "cat/notes.txt").write_text("not an image")
    (tmp_path / "empty").mkdir()
    raw = load(tmp_path)
    assert raw.classes == ("cat", "dog")
    assert _names(raw.pool) == [
        "cat/10.tiff",
        "cat/9.webp",
        "cat/x/1.gif",
        "dog/Z.png",
        "dog/a.jpg",
        "dog/b.PNG",
        "dog/ä.bmp",
    ]
    assert raw.pool.labels.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert raw.test is None


def test_train_and_test_folders_are_the_sources_own_split(tmp_path: Path) -> None:
    for name in ("train/dog/1.png", "train/cat/1.png", "test/dog/1.png", "test/eel/1.png"):
        _picture(tmp_path / name)
    raw = load(tmp_path)
    assert raw.classes == ("cat", "dog", "eel")
    assert _names(raw.pool) == ["train/cat/1.png", "train/dog/1.png"]
    assert raw.test is not None
    assert _names(raw.test) == ["test/dog/1.png", "test/eel/1.png"]
    assert raw.test.labels.tolist() == [1, 2]


def test_images_beside_train_and_test_are_not_quietly_left_out(tmp_path: Path) -> None:
    for name in ("train/dog/1.png", "test/dog/1.png"):
        _picture(tmp_path / name)
    (tmp_path / "docs").mkdir()
    load(tmp_path)
    _picture(tmp_path / "val/dog/1.png")
    with pytest.raises(DataError, match="also images in another folder") as caught:
        load(tmp_path)
    assert caught.value.code == "E-DATA-FORMAT"
    assert caught.value.private == str(tmp_path / "val")


def test_labels_are_read_without_opening_a_file(tmp_path: Path) -> None:
    for name in ("cat/1.png", "dog/1.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"not an image")
    classes, labels = source_labels(f"imagefolder:{tmp_path}")
    assert classes == ("cat", "dog") and labels.tolist() == [0, 1]


def _code(directory: Path) -> str:
    with pytest.raises(DataError) as caught:
        load(directory)
    return caught.value.code


def test_missing_and_empty_directories_are_told_apart(tmp_path: Path) -> None:
    assert _code(tmp_path / "none") == "E-DATA-MISSING"
    (tmp_path / "file").touch()
    assert _code(tmp_path / "file") == "E-DATA-MISSING"
    assert _code(tmp_path / "file/below") == "E-DATA-MISSING"
    assert _code(tmp_path) == "E-DATA-EMPTY"
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat/scan.dcm").touch()
    assert _code(tmp_path) == "E-DATA-EMPTY"


def test_a_test_folder_without_images_is_refused(tmp_path: Path) -> None:
    _picture(tmp_path / "train/cat/1.png")
    (tmp_path / "test/cat").mkdir(parents=True)
    assert _code(tmp_path) == "E-DATA-EMPTY"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_not_passed_over(tmp_path: Path) -> None:
    _picture(tmp_path / "cat/1.png")
    _picture(tmp_path / "dog/1.png")
    (tmp_path / "dog").chmod(0)
    assert _code(tmp_path) == "E-DATA-MISSING"
    (tmp_path / "dog").chmod(0o700)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Twenty pictures, two of them damaged."""
    for number in range(10):
        _picture(tmp_path / f"cat/{number}.png", 10)
        _picture(tmp_path / f"dog/{number}.png", 20)
    good = (tmp_path / "dog/3.png").read_bytes()
    (tmp_path / "dog/3.png").write_bytes(good[: len(good) // 2])
    (tmp_path / "cat/5.png").write_text("not an image")
    return tmp_path


def test_an_unreadable_file_is_named_to_the_administrator_alone(damaged: Path) -> None:
    spec = DataSpec(source=f"imagefolder:{damaged}")
    with pytest.raises(DataError) as caught:
        open_data(spec, TASK, seed=1, site=SITE)
    assert caught.value.code == "E-DATA-UNREADABLE"
    assert any(name in caught.value.private for name in ("'dog/3.png'", "'cat/5.png'"))
    assert ".png" not in f"{caught.value} {caught.value.hint}"


def test_unreadable_files_are_counted_and_left_out_on_request(
    damaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = DataSpec(source=f"imagefolder:{damaged}", unreadable="skip")
    with caplog.at_level(logging.WARNING):
        data = open_data(spec, TASK, seed=1, site=SITE)
    assert data.left_out == 2
    assert data.class_counts == {"cat": 9, "dog": 9}
    assert (len(data.test), len(data.validation), len(data.train)) == (1, 1, 16)
    assert "dog/3.png" in caplog.text and "cat/5.png" in caplog.text
    for part in (data.train, data.validation, data.test):  # labels still belong to their images
        assert (part.images.flatten(1)[:, 0] == part.labels * 10 + 10).all()


def test_a_test_set_of_which_nothing_can_be_read_is_refused(tmp_path: Path) -> None:
    for number in range(3):
        _picture(tmp_path / f"train/cat/{number}.png")
    (tmp_path / "test/cat").mkdir(parents=True)
    (tmp_path / "test/cat/1.png").write_bytes(b"")
    spec = DataSpec(source=f"imagefolder:{tmp_path}", unreadable="skip")
    with pytest.raises(DataError) as caught:
        open_data(spec, TASK, seed=1, site=SITE)
    assert caught.value.code == "E-DATA-EMPTY"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    directory = tmp_path_factory.mktemp("pictures")
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    for suffix in ("png", "jpg", "bmp", "tif", "webp", "gif"):
        Image.fromarray(pixels).save(directory / f"a.{suffix}")
    return {path.suffix: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.filterwarnings("ignore")  # Pillow warns of what it then reads anyway
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_read_or_named_but_never_crashes(
    data: st.DataObject, pictures: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    suffix = data.draw(st.sampled_from(sorted(pictures)))
    content = bytearray(pictures[suffix][: data.draw(st.integers(0, len(pictures[suffix])))])
    for place in data.draw(st.lists(st.integers(0, max(0, len(content) - 1)), max_size=6)):
        content[place : place + 1] = bytes([data.draw(st.integers(0, 255))])
    path = tmp_path_factory.getbasetemp() / f"damaged{suffix}"
    path.write_bytes(content)
    try:
        read_image(path, "'cat/1'")
    except DataError as error:
        assert error.code == "E-DATA-UNREADABLE"
        assert error.private.startswith("'cat/1'")
        assert "cat/1" not in error.message and str(path.parent) not in error.message
