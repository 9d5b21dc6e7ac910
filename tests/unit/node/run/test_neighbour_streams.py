"""The streams on which neighbours follow a run at this site."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.reports import NeighbourState
from fedelmy_node.run.neighbour_streams import NeighbourStreams
from tests.support.journal_writes import set_run
from tests.unit.node.run.site import Site


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site("b")
    yield made
    made.journal.close()


def follow(site: Site) -> Iterator[NeighbourState]:
    streams = NeighbourStreams(site.journal, lambda run: frozenset(), lambda *_, is_open: None)
    return iter(streams.open(SiteName("a"), site.run, ""))


def test_a_state_is_reported_once(site: Site) -> None:
    states = follow(site)
    assert next(states).state == RunState.RUNNING
    site.journal.wake()
    set_run(site.journal, site.run, RunState.FAILED)
    assert next(states).state == RunState.FAILED


def test_a_state_that_changed_back_is_reported_again(site: Site) -> None:
    states = follow(site)
    first = next(states)
    site.journal.wake(repeat=True)
    assert next(states) == first
