"""Walking a chain from its head: real nodes with real certificates, each asked for its --peer."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from fedelmy_launcher.plans.discovery import walk
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.errors import IdentityError, PeerError
from fedelmy_node.domain.names import Address
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.node import Node
from tests.integration.support.serving import lay_down, serving

Identities = Mapping[str, Identity]
Start = Callable[..., Address]


@pytest.fixture
def start(tmp_path: Path, identities: Identities) -> Iterator[Start]:
    """Start the node of a site; all end with the test."""
    stack, numbers = ExitStack(), itertools.count()

    def begin(
        name: str, *peers: str, listen: str = "127.0.0.1:0", advertise: str | None = None
    ) -> Address:
        state = lay_down(tmp_path / str(next(numbers)), identities[name])
        given = Given(state=state, listen=listen, data="digits", peers=peers, advertise=advertise)
        node = Node(load_site_config(given))
        stack.enter_context(serving(node))
        return Address(node.address)

    with stack:
        yield begin


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_a_chain_is_found_from_its_head(start: Start, identities: Identities) -> None:
    south = start("south")
    north = start("north", south)
    chain = walk(north, identities["operator"])
    assert [(link.site, link.address) for link in chain] == [("north", north), ("south", south)]
    assert [link.node.data for link in chain] == ["digits", "digits"]
    assert [link.site for link in walk(south, identities["operator"])] == ["south"]


def test_a_circle_is_named(start: Start, identities: Identities) -> None:
    place = free_address()
    south = start("south", f"north={place}")
    head = start("north", f"south={south}", listen=place)
    with pytest.raises(PeerError, match=r"E-PEER-CHAIN.*cycle.*north -> south -> north"):
        walk(head, identities["operator"])


def test_a_fork_is_named(start: Start, identities: Identities) -> None:
    head = start("north", "south=10.0.0.2:1", "west=10.0.0.3:1")
    with pytest.raises(
        PeerError, match=r"E-PEER-CHAIN.*north has several peers.*south=10.0.0.2:1, west="
    ) as caught:
        walk(head, identities["operator"])
    assert "federation.toml" in caught.value.hint


def test_a_peer_that_is_out_of_reach(start: Start, identities: Identities) -> None:
    nowhere = free_address()
    head = start("north", f"south={nowhere}")
    with pytest.raises(
        PeerError, match=rf"E-PEER-UNREACHABLE.*north sends to south={nowhere}, but"
    ):
        walk(head, identities["operator"])


def test_another_site_than_the_peer_names(start: Start, identities: Identities) -> None:
    south = start("south")
    head = start("north", f"west={south}")
    with pytest.raises(IdentityError, match=r"E-IDENTITY-SITE.*north sends to west=.*south"):
        walk(head, identities["operator"])


def test_a_site_is_taken_where_it_says_if_it_answers_there(
    start: Start, identities: Identities
) -> None:
    place = free_address()
    seen = place.replace(
        "127.0.0.1", "localhost"
    )  # another way to the same node, as through a proxy
    south = start("south", listen=place, advertise=seen)
    (link,) = walk(south, identities["operator"])
    assert (link.address, link.node.advertise, link.doubt) == (seen, seen, "")


def test_a_site_that_does_not_answer_where_it_says_stays_where_it_was_found(
    start: Start, identities: Identities
) -> None:
    south, nowhere = start("south"), free_address()
    north = start("north", south, advertise=nowhere)
    head, _ = walk(north, identities["operator"])
    assert (head.address, head.node.advertise) == (north, nowhere)
    assert head.doubt.startswith(
        f"it advertises {nowhere}, but cannot reach {nowhere}: nothing listens there"
    )
    west = start("north", advertise=south)
    (link,) = walk(west, identities["operator"])
    assert link.address == west and "'south', but 'north' was expected there" in link.doubt
