"""Partitions: exact covers, reproducible, no site too small; and the files that come of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedelmy_launcher.simulate.partition import partition, write_partition
from fedelmy_node.domain.errors import ConfigError, DataError
from fedelmy_node.domain.names import SiteName
from fedelmy_node.training.data.indices import read_indices
from fedelmy_node.training.data.sources import source_labels

SITES = ("north", "south", "west")


@st.composite
def _cases(draw: st.DrawFn) -> dict[str, Any]:
    """Labels of some classes for some sites, enough for twenty samples each."""
    sites = draw(st.integers(1, 6))
    classes = draw(st.integers(1, 8))
    weights = np.array(draw(st.lists(st.integers(1, 20), min_size=classes, max_size=classes)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    labels = random.choice(
        classes, size=draw(st.integers(20 * sites, 60 * sites)), p=weights / weights.sum()
    )
    return {"labels": labels, "sites": sites, "seed": draw(st.integers(0, 2**53 - 1))}


def _assert_cover(parts: list[Any], samples: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples))
    assert all(np.array_equal(part, np.unique(part)) for part in parts)


@settings(max_examples=60, deadline=None)
@given(case=_cases())
def test_iid_parts_are_an_even_cover(case: dict[str, Any]) -> None:
    parts = partition(**case, method="iid")
    _assert_cover(parts, len(case["labels"]))
    assert len(parts) == case["sites"]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert all(
        np.array_equal(a, b) for a, b in zip(parts, partition(**case, method="iid"), strict=True)
    )


@settings(max_examples=60, deadline=None)
@given(case=_cases(), alpha=st.sampled_from([0.3, 0.5, 1.0, 10.0, 1000.0]))
def test_dirichlet_parts_are_a_cover_without_tiny_sites(case: dict[str, Any], alpha: float) -> None:
    try:
        parts = partition(**case, method="dirichlet", alpha=alpha)
    except ConfigError as error:  # too skewed for so few samples: said, not hidden
        assert error.code == "E-CONFIG-VALUE" and "Raise alpha" in error.hint
        assert alpha <= 1 and case["sites"] > 1
        return
    _assert_cover(parts, len(case["labels"]))
    assert len(parts) == case["sites"] and min(map(len, parts)) >= 10
    again = partition(**case, method="dirichlet", alpha=alpha)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def _counts(alpha: float, seed: int = 1) -> np.ndarray[Any, Any]:
    labels = np.repeat(np.arange(10), 500)
    parts = partition(labels, 10, method="dirichlet", alpha=alpha, seed=seed)
    return np.stack([np.bincount(labels[part], minlength=10) for part in parts])


def test_a_smaller_alpha_skews_more() -> None:
    spread = [
        np.mean([_counts(alpha, seed).std() for seed in range(3)]) for alpha in (0.1, 0.5, 5, 500)
    ]
    assert spread == sorted(spread, reverse=True)
    assert np.abs(_counts(1e5) - 50).max() <= 3


def test_a_full_site_gets_nothing_of_the_classes_that_follow() -> None:
    for seed in range(5):
        cumulated = _counts(0.1, seed).cumsum(axis=1)
        full = cumulated >= 500
        grown = np.diff(cumulated, axis=1) > 0
        assert full.any()
        assert not (full[:, :-1] & grown).any()


def test_the_seed_changes_the_parts() -> None:
    labels = np.arange(200) % 4
    for method in ("iid", "dirichlet"):
        one, other = (partition(labels, 3, method=method, seed=seed) for seed in (1, 2))
        assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_labels_may_be_a_list_and_any_integers() -> None:
    parts = partition([7, -3] * 40, 2, method="dirichlet", alpha=1.0, seed=0)
    _assert_cover(parts, 80)


def test_few_samples_lower_the_smallest_part() -> None:
    parts = partition([0, 1] * 8, 4, method="dirichlet", alpha=1e5, seed=0)
    assert [len(part) for part in parts] == [4] * 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sites": 0, "method": "iid"}, "at least one site"),
        ({"sites": 101, "method": "iid"}, "100 samples are too few for 101 sites"),
        ({"sites": 2, "method": "random"}, "unknown method 'random'"),
        ({"sites": 2, "method": "iid", "alpha": 0.5}, "iid has no skew"),
        ({"sites": 2, "method": "dirichlet", "alpha": 0}, "alpha must be above 0"),
        ({"sites": 2, "method": "dirichlet", "alpha": float("nan")}, "alpha must be above 0"),
        ({"sites": 10, "method": "dirichlet", "alpha": 1e-3}, "none of 1000 draws"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        partition([0] * 100, seed=1, **arguments)
    assert caught.value.code == "E-CONFIG-VALUE"


# --- files


def test_files_are_the_partition_and_say_how_it_was_made(tmp_path: Path) -> None:
    written = write_partition(
        "digits", SITES, method="dirichlet", seed=7, out_dir=tmp_path / "new/parts"
    )
    _, labels = source_labels("digits")
    parts = partition(labels, 3, method="dirichlet", alpha=0.5, seed=7)
    assert [path.name for path in written.paths] == ["north.json", "south.json", "west.json"]
    assert written.classes == tuple("0123456789")
    for path, part, counts, site in zip(written.paths, parts, written.counts, SITES, strict=True):
        indices = read_indices(path)
        assert indices.indices == tuple(part)
        assert (indices.method, indices.alpha, indices.seed, indices.sites) == (
            "dirichlet",
            0.5,
            7,
            3,
        )
        indices.require_fit(source_kind="digits", samples=1797, site=SiteName(site))
        assert counts == tuple(np.bincount(labels[part], minlength=10))
    assert np.sum(written.counts) == 1797


def test_writing_again_gives_the_same_bytes(tmp_path: Path) -> None:
    texts = [
        [
            path.read_bytes()
            for path in write_partition("digits", SITES, method="iid", seed=7, out_dir=out).paths
        ]
        for out in (tmp_path / "a", tmp_path / "b", tmp_path / "a")
    ]
    assert texts[0] == texts[1] == texts[2]


def test_wrong_sites_and_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a site name"):
        write_partition("digits", ["../north"], method="iid", seed=1, out_dir=tmp_path)
    with pytest.raises(ConfigError, match="same name"):
        write_partition("digits", ["north", "north"], method="iid", seed=1, out_dir=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError) as caught:
        write_partition("digits", SITES, method="iid", seed=1, out_dir=tmp_path / "file")
    assert caught.value.code == "E-DATA-INDICES"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
