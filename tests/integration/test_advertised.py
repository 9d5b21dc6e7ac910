"""Where a site says that it is reached, against where the operator's file has it: told, whatever
comes of it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.domain.reports import Finding
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.node import Node
from fedelmy_node.ops.doctor.peer_checks import Caller, compare_advertised
from tests.integration.support.serving import lay_down, serving

Identities = Mapping[str, Identity]
LISTED = Address("federation.example:50051")


@pytest.fixture(params=[False, True], ids=["tls", "insecure"])
def caller(request: pytest.FixtureRequest, identities: Identities) -> Caller:
    identity = None if request.param else identities["operator"]
    return Caller(name="operator/operator", identity=identity, insecure=request.param)


@pytest.fixture
def south(tmp_path: Path, identities: Identities, caller: Caller) -> Iterator[Address]:
    state = lay_down(tmp_path / "south", identities["south"])
    given = Given(
        state=state, listen="127.0.0.1:0", data="digits", insecure=caller.insecure, site="south"
    )
    node = Node(load_site_config(given))
    with serving(node):
        yield Address(node.address)


def told(place: Address, caller: Caller, site: str = "south") -> Finding:
    (finding,) = compare_advertised(place, LISTED, SiteName(site), caller)
    assert (finding.subject, finding.check, finding.verdict) == (
        "from here",
        "advertise",
        "warning",
    )
    assert place in finding.message and LISTED in finding.message and finding.fix
    return finding


def test_what_the_file_says_too_is_nothing_to_tell(caller: Caller) -> None:
    assert list(compare_advertised(LISTED, LISTED, SiteName("south"), caller)) == []


def test_another_address_that_leads_there(south: Address, caller: Caller) -> None:
    finding = told(south, caller)
    assert finding.code == "E-CONFIG-ADDRESS" and f'write address = "{south}"' in finding.fix


def test_another_address_that_leads_elsewhere(south: Address, caller: Caller) -> None:
    finding = told(south, caller, "north")
    assert finding.code == ("E-PEER-PROTOCOL" if caller.insecure else "E-IDENTITY-SITE")
    assert "south" in finding.message and "Ask north which address is right" in finding.fix


def test_another_address_that_leads_nowhere(caller: Caller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        place = Address(f"127.0.0.1:{gone.getsockname()[1]}")
    assert told(place, caller).code == "E-PEER-UNREACHABLE"
