"""The indices file: what is written can be read, and nothing else can."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedelmy_node.domain.errors import DataError, StoreError
from fedelmy_node.domain.names import SiteName
from fedelmy_node.training.data.indices import FORMAT, Indices, read_indices, write_indices

NORTH = SiteName("north")
VALID: dict[str, Any] = {
    "format": FORMAT,
    "source_kind": "digits",
    "samples": 5,
    "method": "iid",
    "seed": 1,
    "site": "north",
    "indices": [4, 0, 2],
}


def _refusal(path: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        read_indices(path)
    assert caught.value.code == "E-DATA-INDICES"
    return caught.value


def test_a_file_by_hand_is_read(tmp_path: Path) -> None:
    path = tmp_path / "i.json"
    path.write_text(json.dumps(VALID))
    indices = read_indices(path)
    assert indices.indices == (4, 0, 2) and indices.site == "north" and indices.alpha is None


def test_what_is_written_is_read_and_nothing_else_stays(tmp_path: Path) -> None:
    indices = Indices(
        source_kind="digits",
        samples=9,
        method="dirichlet",
        seed=3,
        site=NORTH,
        indices=(8, 1),
        alpha=0.5,
        sites=2,
    )
    path = tmp_path / "north.json"
    path.write_text("an older file")
    write_indices(path, indices)
    assert read_indices(path) == indices
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "i.json"
    path.mkdir()
    indices = Indices(
        source_kind="digits", samples=9, method="iid", seed=3, site=NORTH, indices=(8,)
    )
    with pytest.raises(StoreError, match="cannot be written"):
        write_indices(path, indices)
    with pytest.raises(StoreError, match="cannot be written"):
        write_indices(tmp_path / "none" / "i.json", indices)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "fedelmy-indices-2"}, "format"),
        ({"format": None}, "format"),
        ({"samples": None}, "samples"),
        ({"samples": 4}, "index 4 is beyond the last of 4 samples"),
        ({"samples": "5"}, "samples must be an integer"),
        ({"indices": []}, "empty"),
        ({"indices": [0, 5]}, "index 5 is beyond"),
        ({"indices": [0, -1]}, "index -1 is negative"),
        ({"indices": [0, 1, 0]}, "twice"),
        ({"indices": [0, 1.0]}, r"indices\[1\] must be an integer"),
        ({"indices": [True]}, r"indices\[0\] must be an integer"),
        ({"indices": 7}, "indices must be a list"),
        ({"site": "North Pole"}, "not a site name"),
        ({"alpha": "0.5"}, "alpha must be a number"),
        ({"sample": 5}, "unknown key 'sample'"),
    ],
)
def test_every_wrong_value_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "i.json"
    changed = {key: value for key, value in (VALID | change).items() if value is not None}
    path.write_text(json.dumps(changed))
    error = _refusal(path)
    assert error.private == str(path) and str(path) not in error.message
    with pytest.raises(DataError, match=words):
        raise error


def test_missing_files_and_directories_are_refused(tmp_path: Path) -> None:
    assert "--indices" in _refusal(tmp_path / "none.json").hint
    assert "--indices" in _refusal(tmp_path).hint


def test_indices_fit_only_what_they_were_drawn_for() -> None:
    indices = Indices(
        source_kind="digits", samples=9, method="iid", seed=3, site=NORTH, indices=(8,)
    )
    indices.require_fit(source_kind="digits", samples=9, site=NORTH)
    for change in ({"source_kind": "npz"}, {"samples": 10}, {"site": SiteName("south")}):
        fit: dict[str, Any] = {"source_kind": "digits", "samples": 9, "site": NORTH} | change
        with pytest.raises(DataError) as caught:
            indices.require_fit(**fit)
        assert caught.value.code == "E-DATA-INDICES"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    content=st.binary(max_size=40)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.tuples(st.sampled_from([*VALID, "alpha", "sites", "other"]), JSON).map(
        lambda pair: json.dumps(VALID | {pair[0]: pair[1]}).encode()
    )
    | st.sampled_from(
        [
            b"[" * 100_000,
            b'{"format":"%s","indices":%s' % (FORMAT.encode(), b"[" * 900 + b"]" * 900 + b"}"),
        ]
    )
)
def test_rubbish_is_refused_and_never_crashes(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "rubbish.json"
    path.write_bytes(content)
    try:
        indices = read_indices(path)
    except DataError as error:
        assert error.code == "E-DATA-INDICES"
    else:
        assert set(indices.indices) <= set(range(indices.samples))


@settings(max_examples=50, deadline=None)
@given(
    picked=st.sets(st.integers(0, 10_000), min_size=1, max_size=50),
    seed=st.integers(0, 2**53),
    alpha=st.none() | st.floats(1e-6, 1e6),
)
def test_round_trip(
    picked: set[int], seed: int, alpha: float | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.json"
    indices = Indices(
        source_kind="npz",
        samples=10_001,
        method="any",
        seed=seed,
        site=NORTH,
        indices=tuple(picked),
        alpha=alpha,
    )
    write_indices(path, indices)
    assert read_indices(path) == indices
