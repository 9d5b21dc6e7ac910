"""Where a node is: called directly, or by way of another one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.names import (
    Address,
    PeerAddress,
    SiteName,
    node_address,
    peer_address,
    relay_and_site,
)

SITES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True)
HOSTS = st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True) | st.sampled_from(
    ["[::1]", "[fe80::1%2]"]
)
DIRECT = st.builds(lambda host, port: f"{host}:{port}", HOSTS, st.integers(0, 65535))


@given(DIRECT, SITES)
def test_an_address_says_by_way_of_whom(direct: str, site: str) -> None:
    assert relay_and_site(node_address(direct)) is None
    assert relay_and_site(node_address(f"{direct}/{site}")) == (direct, site)


@given(DIRECT, SITES, st.booleans())
def test_a_peer_by_way_of_another_is_named_by_its_address(
    direct: str, site: str, named: bool
) -> None:
    text = f"{direct}/{site}"
    peer = peer_address(f"{site}={text}" if named else text)
    assert peer == PeerAddress(SiteName(site), Address(text))
    assert peer_address(str(peer)) == peer


@given(DIRECT, SITES, SITES)
def test_a_peer_has_one_name(direct: str, site: str, other: str) -> None:
    if site == other:
        return
    with pytest.raises(ConfigError, match="names two sites"):
        peer_address(f"{site}={direct}/{other}")


@pytest.mark.parametrize(
    "text",
    [
        "h:1/",
        "h:1/south/west",
        "h:1/South",
        "h/south",
        "/south",
        "h:99999/south",
        "h:1/-a",
        "h:1/a ",
        "h:1 /a",
    ],
)
def test_what_is_no_node_address(text: str) -> None:
    for rule in (node_address, peer_address):
        with pytest.raises(ConfigError):
            rule(text)


@given(st.text(max_size=60))
def test_any_text_is_a_place_or_refused(text: str) -> None:
    try:
        found = node_address(text)
    except ConfigError as error:
        assert len(error.message) < 200
    else:
        relayed = relay_and_site(found)
        assert found == (f"{relayed[0]}/{relayed[1]}" if relayed else text)
