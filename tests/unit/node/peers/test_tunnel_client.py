"""Where a site that cannot be called waits: once at each site that may have to reach it, and
nowhere else.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from fedelmy_node.domain.names import Address, PeerAddress, SiteName
from fedelmy_node.peers.tunnel import tunnel_client as module
from fedelmy_node.peers.tunnel.tunnel_client import TunnelClient

NORTH, WEST = SiteName("north"), SiteName("west")


class Post:
    """A place, without a connection."""

    standing: list[PeerAddress]

    def __init__(self, place: PeerAddress, *_: Any) -> None:
        self.place, self.problem = place, ""
        self.standing.append(place)

    def stop(self) -> None:
        self.standing.remove(self.place)


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> list[PeerAddress]:
    monkeypatch.setattr(Post, "standing", [], raising=False)
    monkeypatch.setattr(module, "_Stream", Post)
    return Post.standing


def awaiting(
    known: dict[PeerAddress, SiteName], runs: list[Any], direction: str = "pull"
) -> TunnelClient:
    config: Any = SimpleNamespace(direction=direction, peers=tuple(known))
    journal: Any = SimpleNamespace(
        runs=lambda: runs, run=lambda run: next(r for r in runs if r.run == run)
    )
    peers: Any = SimpleNamespace(known=lambda peer: known[peer] or None, relay=None)
    return TunnelClient(config, Address("0.0.0.0:7001"), peers, journal)


def run(name: str, *neighbours: PeerAddress, over_seconds: float | None = None) -> Any:
    return SimpleNamespace(
        run=name,
        state=SimpleNamespace(is_over=over_seconds is not None),
        changed_at=time.time() - (over_seconds or 0),
        slice=SimpleNamespace(neighbours=neighbours),
    )


def test_a_site_that_can_be_called_waits_nowhere(standing: list[PeerAddress]) -> None:
    awaiting({PeerAddress(NORTH, Address("n:1")): NORTH}, [], "push").refresh()
    assert standing == []


def test_it_waits_at_its_peers_and_at_the_neighbours_of_its_runs(
    standing: list[PeerAddress],
) -> None:
    runs = [
        run("r-1", PeerAddress(WEST, Address("w:1")), PeerAddress(NORTH, Address("elsewhere:1")))
    ]
    peer = PeerAddress(NORTH, Address("n:1"))
    site = awaiting({peer: NORTH}, runs)
    site.refresh()
    assert sorted(map(str, standing)) == [
        "north=n:1",
        "west=w:1",
    ]  # --peer goes before what the operator says
    runs[:] = [run("r-1", PeerAddress(WEST, Address("w:1")), over_seconds=60)]
    site.refresh()
    assert sorted(map(str, standing)) == [
        "north=n:1",
        "west=w:1",
    ]  # it may still be asked how the run ended
    runs[:] = [run("r-1", PeerAddress(WEST, Address("w:1")), over_seconds=90_000)]
    site.refresh()
    assert standing == [peer]
    site.close()
    assert standing == []
    site.refresh()
    assert standing == []


def test_it_does_not_wait_twice_at_a_site_whose_name_it_learns_later(
    standing: list[PeerAddress],
) -> None:
    unnamed = PeerAddress(None, Address("proxy.example:443"))
    known: dict[PeerAddress, Any] = {unnamed: None}
    site = awaiting(known, [run("r-1", PeerAddress(NORTH, Address("10.0.0.7:50051")))])
    site.refresh()
    assert len(standing) == 2
    known[unnamed] = NORTH
    site.refresh()
    assert standing == [unnamed]
