"""Label skew, from what sites disclose about their classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedelmy_launcher.advice.advisor import level_of
from fedelmy_launcher.advice.evidence import load_evidence
from fedelmy_launcher.advice.label_skew import SiteCounts, Skew, counts_of, measure
from fedelmy_launcher.simulate.partition import partition
from fedelmy_node.domain.names import SiteName

CLASSES = ("a", "b", "c")


def site(name: str, *counts: int, **more: Any) -> SiteCounts:
    """A site with these samples of the classes a, b, c, ..."""
    classes = dict(zip("abcdefghij", counts, strict=False))
    return SiteCounts(site=SiteName(name), train=sum(counts), classes=classes, **more)


def skew_of(*sites: SiteCounts) -> Skew:
    found = measure(sites, CLASSES)
    assert found is not None
    return found


def test_equal_shares_are_no_skew_whatever_the_sizes() -> None:
    found = skew_of(site("north", 10, 20, 30), site("south", 100, 200, 300))
    assert found.distance == pytest.approx(0) and found.absent == 0 and found.nowhere == ()


def test_sites_without_a_common_class_are_as_far_apart_as_can_be() -> None:
    found = skew_of(site("north", 50, 0, 0), site("south", 0, 50, 0))
    assert found.distances == {"north": 0.5, "south": 0.5}
    assert found.absent == 0.5, "the class that no site has does not count"
    assert found.nowhere == ("c",)


def test_a_class_with_test_samples_only_is_absent() -> None:
    found = skew_of(site("north", 50, 50, 1, missing=frozenset("c")), site("south", 50, 50, 50))
    assert found.absent == pytest.approx(1 / 6)


@pytest.mark.parametrize("sites", [[], ["south"], ["south", "west"]])
def test_one_site_that_tells_shows_no_skew_among_several(sites: list[str]) -> None:
    silent = [SiteCounts(site=SiteName(name)) for name in sites]
    found = measure([site("north", 1, 2, 3), *silent], CLASSES)
    assert (found is None) == bool(sites)


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ({"method": "iid"}, "none"),
        ({"method": "iid", "samples": 300}, "none"),
        ({"method": "dirichlet", "alpha": 0.5}, "moderate"),
        ({"method": "dirichlet", "alpha": 0.1}, "strong"),
    ],
)
def test_the_levels_are_those_of_the_measurements(arguments: dict[str, Any], level: str) -> None:
    labels = np.repeat(np.arange(10), 1000)
    parts = partition(labels, 5, seed=1, **{"samples": 10_000, **arguments})
    counts = [np.bincount(labels[part], minlength=10).tolist() for part in parts]
    sites = [site(f"site-{number}", *each) for number, each in enumerate(counts)]
    assert level_of(measure(sites, "abcdefghij"), load_evidence()) == level


def test_chance_explains_the_distances_of_a_random_split() -> None:
    labels = np.repeat(np.arange(3), 500)
    parts = partition(labels, 10, method="iid", seed=3)
    counts = [np.bincount(labels[part], minlength=3).tolist() for part in parts]
    found = skew_of(*(site(f"site-{number}", *each) for number, each in enumerate(counts)))
    assert found.distance == pytest.approx(found.by_chance, rel=0.4)


def test_a_report_is_read_as_far_as_it_tells() -> None:
    report = {
        "samples": {"train": 9, "validation": 1},
        "class_counts": {"a": 10, "b": 0, "other": 5},
        "missing_classes": ["b", "c"],
        "smallest_class": 10,
    }
    found = counts_of(SiteName("north"), report, CLASSES)
    assert (found.train, found.validation, found.smallest) == (9, 1, 10)
    assert found.classes == {"a": 10, "b": 0, "c": 0} and found.present == ("a",)
    assert counts_of(SiteName("north"), {}, CLASSES) == SiteCounts(site=SiteName("north"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcx"), inner, max_size=4)
    ),
    max_leaves=8,
)
KEYS = ("samples", "class_counts", "missing_classes", "smallest_class")


@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, JSON)), max_size=4))
def test_no_report_breaks_the_measurement(reports: list[dict[str, Any]]) -> None:
    names = (SiteName(f"site-{number}") for number in range(len(reports)))
    sites = [counts_of(name, report, CLASSES) for name, report in zip(names, reports, strict=True)]
    found = measure(sites, CLASSES)
    assert found is None or (0 <= found.distance <= 1 and 0 <= found.absent <= 1)
