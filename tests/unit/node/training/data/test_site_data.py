"""`open_data`: classes by name, the subset, and the split."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedelmy_node.domain.errors import DataError, TrainingError
from fedelmy_node.domain.federation import InputFormat, Task
from fedelmy_node.domain.names import SiteName
from fedelmy_node.training.data.indices import Indices, write_indices
from fedelmy_node.training.data.samples import Samples
from fedelmy_node.training.data.site_data import SiteData, open_data, split_sizes
from fedelmy_node.training.job import DataSpec

NORTH, SOUTH = SiteName("north"), SiteName("south")
DIGITS = Task(classes=tuple("0123456789"), input=InputFormat(height=8, width=8, channels=1))
ANIMALS = Task(classes=("dog", "ape", "cat"), input=InputFormat(height=1, width=1, channels=1))


def _folder(root: Path, **counts: int) -> DataSpec:
    """A folder of one-pixel images per class; the grey value says the class."""
    for value, (name, count) in enumerate(sorted(counts.items())):
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.new("L", (1, 1), 10 * value + 10).save(root / name / f"{number:03}.png")
    return DataSpec(source=f"imagefolder:{root}")


def _npz(path: Path, samples: int, *, test: int = 0, **more: Any) -> DataSpec:
    """An archive whose samples can be told apart by their value."""
    own: dict[str, Any] = {}
    if test:
        own = {
            "test_images": np.full((test, 1, 1), 9999, np.uint16),
            "test_labels": np.zeros(test, int),
        }
    images = np.arange(samples, dtype=np.uint16).reshape(-1, 1, 1)
    np.savez(path, images=images, labels=np.arange(samples) % 2, classes=["dog", "ape"], **own)
    return DataSpec(source=f"npz:{path}", **more)


def _all(data: SiteData) -> list[Samples]:
    return [data.train, data.validation, data.test]


def _values(part: Samples) -> list[int]:
    return (part.images.flatten() * 65535).round().int().tolist()


# --- classes


def test_sites_with_different_classes_number_them_alike(tmp_path: Path) -> None:
    north = open_data(_folder(tmp_path / "n", ape=4, dog=6), ANIMALS, seed=1, site=NORTH)
    south = open_data(_folder(tmp_path / "s", cat=5, dog=5), ANIMALS, seed=1, site=SOUTH)
    for part in _all(north):  # ape is 10, dog is 20; the federation numbers dog 0, ape 1, cat 2
        assert (part.labels == torch.where(part.images.flatten() == 20, 0, 1)).all()
    for part in _all(south):  # cat is 10, dog is 20
        assert (part.labels == torch.where(part.images.flatten() == 20, 0, 2)).all()
    assert north.class_counts == {"dog": 6, "ape": 4, "cat": 0} and north.missing_classes == (
        "cat",
    )
    assert south.class_counts == {"dog": 5, "ape": 0, "cat": 5} and south.missing_classes == (
        "ape",
    )
    assert list(north.class_counts) == ["dog", "ape", "cat"]


def test_an_unknown_class_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1 class\(es\)") as caught:
        open_data(_folder(tmp_path / "a", ape=4, Dogs=6), ANIMALS, seed=1, site=NORTH)
    assert (
        caught.value.code == "E-DATA-CLASS"
        and caught.value.private == "'Dogs': did you mean 'dog'?"
    )
    with pytest.raises(DataError, match=r"2 class\(es\)") as caught:
        open_data(_folder(tmp_path / "b", horse=4, yak=6), ANIMALS, seed=1, site=NORTH)
    assert "Rename" in caught.value.hint and caught.value.private == "'horse' and 1 more"
    assert "horse" not in f"{caught.value} {caught.value.hint}"  # folders may be named after people


def test_accents_are_compared_as_people_read_them(tmp_path: Path) -> None:
    stored = unicodedata.normalize("NFD", "Ödem")
    task = Task(classes=("healthy", unicodedata.normalize("NFC", "Ödem")), input=ANIMALS.input)
    data = open_data(_folder(tmp_path, **{stored: 4}), task, seed=1, site=NORTH)
    assert set(data.train.labels.tolist()) == {1}


def test_an_unknown_class_outside_of_the_sites_subset_does_not_matter(tmp_path: Path) -> None:
    spec = _folder(tmp_path / "d", ape=4, horse=4)
    path = tmp_path / "i.json"
    write_indices(
        path,
        Indices(
            source_kind="imagefolder",
            samples=8,
            method="iid",
            seed=0,
            site=NORTH,
            indices=(0, 1, 2, 3),
        ),
    )
    data = open_data(DataSpec(source=spec.source, indices=path), ANIMALS, seed=1, site=NORTH)
    assert data.class_counts == {"dog": 0, "ape": 4, "cat": 0}


# --- split


def test_digits_are_split_90_10_after_a_tenth_for_testing() -> None:
    data = open_data(DataSpec(source="digits"), DIGITS, seed=1, site=NORTH)
    assert [len(part) for part in _all(data)] == [1457, 161, 179]
    assert (
        sum(data.class_counts.values()) == 1797
        and data.missing_classes == ()
        and data.left_out == 0
    )
    assert data.train.images.dtype == torch.uint8 and data.train.images.shape[1:] == (1, 8, 8)
    assert data.train.labels.dtype == torch.int64


def test_parts_are_disjoint_and_cover_everything(tmp_path: Path) -> None:
    data = open_data(_npz(tmp_path / "a.npz", 103), ANIMALS, seed=1, site=NORTH)
    assert [len(part) for part in _all(data)] == [84, 9, 10]
    assert sorted(value for part in _all(data) for value in _values(part)) == list(range(103))
    for part in _all(data):
        assert part.labels.tolist() == [value % 2 for value in _values(part)]


def test_the_split_depends_on_seed_and_site_and_nothing_else(tmp_path: Path) -> None:
    def values(path: str, seed: int, site: SiteName) -> list[list[int]]:
        spec = _npz(tmp_path / path, 50)
        return [_values(part) for part in _all(open_data(spec, ANIMALS, seed=seed, site=site))]

    first = values("a.npz", 1, NORTH)
    assert values("b.npz", 1, NORTH) == first
    assert values("a.npz", 2, NORTH) != first
    assert values("a.npz", 1, SOUTH) != first


def test_the_split_of_a_folder_does_not_depend_on_where_it_is(tmp_path: Path) -> None:
    specs = [_folder(tmp_path / place, ape=9, dog=7, cat=5) for place in ("a", "somewhere/else")]
    one, other = (open_data(spec, ANIMALS, seed=1, site=NORTH) for spec in specs)
    for left, right in zip(_all(one), _all(other), strict=True):
        assert torch.equal(left.images, right.images) and torch.equal(left.labels, right.labels)


def test_a_sources_own_test_set_is_the_test_data(tmp_path: Path) -> None:
    data = open_data(_npz(tmp_path / "a.npz", 40, test=5), ANIMALS, seed=1, site=NORTH)
    assert _values(data.test) == [9999] * 5
    assert sorted(_values(data.train) + _values(data.validation)) == list(range(40))
    assert len(data.validation) == 4
    assert data.class_counts == {"dog": 25, "ape": 20, "cat": 0}


def test_a_class_that_only_the_test_set_has_is_missing(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"images": np.zeros((4, 1, 1), np.uint8), "labels": ["dog"] * 4}
    own_test: dict[str, Any] = {
        "test_images": np.zeros((2, 1, 1), np.uint8),
        "test_labels": ["ape"] * 2,
    }
    np.savez(tmp_path / "a.npz", **arrays, **own_test)
    data = open_data(DataSpec(source=f"npz:{tmp_path}/a.npz"), ANIMALS, seed=1, site=NORTH)
    assert data.class_counts == {"dog": 4, "ape": 2, "cat": 0}
    assert data.missing_classes == ("ape", "cat")


@given(samples=st.integers(0, 100_000), own_test=st.booleans())
def test_every_part_gets_a_sample_or_the_site_is_told(samples: int, own_test: bool) -> None:
    if samples < (2 if own_test else 3):
        with pytest.raises(TrainingError) as caught:
            split_sizes(samples, own_test=own_test)
        assert caught.value.code == "E-TRAINING-SAMPLES"
        return
    test, validation, train = split_sizes(samples, own_test=own_test)
    assert test + validation + train == samples
    assert train >= 1 and validation >= 1 and (test == 0 if own_test else test >= 1)
    assert abs(validation - (samples - test) / 10) < 1


def test_the_smallest_sites(tmp_path: Path) -> None:
    three = open_data(_npz(tmp_path / "a.npz", 3), ANIMALS, seed=1, site=NORTH)
    assert [len(part) for part in _all(three)] == [1, 1, 1]
    with pytest.raises(TrainingError, match=r"2 sample\(s\)"):
        open_data(_npz(tmp_path / "b.npz", 2), ANIMALS, seed=1, site=NORTH)


# --- subset


def _indices(path: Path, *indices: int, **change: Any) -> Path:
    fields: dict[str, Any] = {
        "source_kind": "npz",
        "samples": 50,
        "method": "iid",
        "seed": 0,
        "site": NORTH,
    } | change
    write_indices(path, Indices(indices=indices, **fields))
    return path


def test_indices_choose_from_the_pool_and_leave_the_test_set(tmp_path: Path) -> None:
    spec = _npz(tmp_path / "a.npz", 50, test=3, indices=_indices(tmp_path / "i.json", 40, 7, 8, 30))
    data = open_data(spec, ANIMALS, seed=1, site=NORTH)
    assert sorted(_values(data.train) + _values(data.validation)) == [7, 8, 30, 40]
    assert len(data.test) == 3


def test_the_order_in_an_indices_file_means_nothing(tmp_path: Path) -> None:
    specs = [
        _npz(tmp_path / "a.npz", 50, indices=_indices(tmp_path / f"{place}.json", *order))
        for place, order in enumerate(((1, 5, 9, 13), (13, 1, 9, 5)))
    ]
    one, other = (open_data(spec, ANIMALS, seed=1, site=NORTH) for spec in specs)
    assert [_values(part) for part in _all(one)] == [_values(part) for part in _all(other)]


@pytest.mark.parametrize(
    "change", [{"samples": 51}, {"source_kind": "imagefolder"}, {"site": SOUTH}]
)
def test_indices_of_something_else_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    spec = _npz(tmp_path / "a.npz", 50, indices=_indices(tmp_path / "i.json", 1, 2, 3, **change))
    with pytest.raises(DataError) as caught:
        open_data(spec, ANIMALS, seed=1, site=NORTH)
    assert caught.value.code == "E-DATA-INDICES"
