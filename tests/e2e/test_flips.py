"""A short part of the flipped bits (`make e2e` has all of them): a few of each kind, without
training.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.flip_bits import Judge, flips
from tests.e2e.support.flipbed import KINDS, SITES, FlipBed, strangers

_FLIPS = 10
_SEED = 7


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlipBed]:
    made = FlipBed(tmp_path_factory.mktemp("flips"))
    try:
        made.take()
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_is_read_because_of_a_flipped_bit(bed: FlipBed, kind: str) -> None:
    judge = Judge(bed, kind)
    judged = [judge.judge(flip) for flip in flips(kind, judge.snapshot, _FLIPS, _SEED)]
    assert [(str(one.flip), one.why) for one in judged if one.verdict == "WRONG"] == []


def test_every_file_of_a_state_directory_is_of_a_kind(bed: FlipBed) -> None:
    assert [
        path
        for one in bed.snapshots.values()
        for name in SITES
        for path in strangers(one.state(name))
    ] == []
