"""Where a class was learned and lost."""

from __future__ import annotations

import pytest

from fedelmy_launcher.view.report.forgetting_chart import Hop, forgetting, hops, losses
from tests.support.story import CLASSES, told_history


def hop(site: str, when: str, **correct: int) -> Hop:
    """Of ten samples each."""
    counts = {name: {"samples": 10, "correct": many} for name, many in correct.items()}
    return Hop(site=site, when=when, classes=counts)


A, B, C = "north", "south", "west"
CHAIN = [hop(A, "after", cat=9), hop(B, "received"), hop(B, "after")]


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ([hop(B, "received", cat=9), hop(B, "after", cat=2)], [("cat", (B,), True)]),
        ([hop(B, "received", cat=9), hop(B, "after", cat=8)], []),
        ([hop(B, "received", cat=2), hop(B, "after", cat=9)], []),
        # Other samples of the same model: no training in between.
        ([hop(A, "after", cat=9), hop(B, "received", cat=2)], []),
        ([*CHAIN, hop(C, "received", cat=1)], [("cat", (B,), False)]),
        (
            [*CHAIN, hop(C, "received"), hop(C, "after"), hop("all sites", "result", cat=0)],
            [("cat", (B, C), False)],
        ),
        (
            [hop(A, "received", cat=9, dog=9), hop(A, "after", cat=3, dog=3)],
            [("cat", (A,), True), ("dog", (A,), True)],
        ),
    ],
)
def test_a_class_is_lost_where_it_falls(
    columns: list[Hop], found: list[tuple[str, tuple[str, ...], bool]]
) -> None:
    assert [(loss.name, loss.sites, loss.by_same_samples) for loss in losses(columns)] == found


def test_a_few_samples_tell_nothing() -> None:
    few = [
        Hop(site=A, when=when, classes={"cat": {"samples": 4, "correct": correct}})
        for when, correct in (("received", 4), ("after", 0))
    ]
    assert list(losses(few)) == []


def test_the_columns_are_in_the_order_of_training() -> None:
    history = told_history().encoded()
    columns = hops(history)
    assert [(column.site, column.when) for column in columns][:2] == [
        ("north", "received"),
        ("north", "after"),
    ]
    assert columns[0].share(CLASSES[0]) == 0.9 and columns[1].share(CLASSES[1]) == 0.5
    picture = forgetting(history)
    assert picture is not None and "north: after" in picture


def test_sites_that_do_not_tell_leave_no_picture() -> None:
    history = told_history().encoded()
    for site in history["sites"]:
        for step in site["steps"]:
            step["received_classes"] = step["validated_classes"] = None
    assert hops(history) == [] and forgetting(history) is None
