"""The name that a connection asks for: what a proxy with several nodes behind one port routes by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import grpc
import pytest

from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.domain.subject import NameRule, Subject, TrustRules
from fedelmy_node.identity import keystore
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.live_identity import LiveIdentity
from fedelmy_node.rpc.channel import open_channel
from fedelmy_node.rpc.error_mapping import map_errors
from tests.integration.support.passthrough import PassThrough
from tests.support.hospital import Hospital

Identities = Mapping[str, Identity]
Serve = Callable[..., Address]
Proxy = Callable[..., PassThrough]
NORTH, SOUTH = Subject.of("north", "site"), Subject.of("south", "site")


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made: list[PassThrough] = []

    def make(ways: Mapping[str | None, Address]) -> PassThrough:
        made.append(PassThrough(ways))
        return made[-1]

    yield make
    for each in made:
        each.end()


def met(address: Address, me: Identity, site: str | None = None) -> str:
    """Who answers, once pre-flight and channel are through."""
    expected = None if site is None else SiteName(site)
    channel: grpc.Channel = open_channel(address, me, expect_role="site", expect_site=expected)
    with channel, map_errors(site or address):
        assert channel.unary_unary("/test.Echo/WhoAmI")(b"", timeout=60) == str(me.subject).encode()
        named = channel.unary_unary("/test.Echo/Name")(b"", timeout=60)
    return named.decode()  # type: ignore[no-any-return]


def named(serve: Serve, identity: Identity | LiveIdentity, name: str) -> Address:
    """A server that says which one it is."""
    return serve(
        identity, more={"Name": grpc.unary_unary_rpc_method_handler(lambda _, __: name.encode())}
    )


@pytest.fixture
def two(identities: Identities, serve: Serve) -> dict[str, Address]:
    return {name: named(serve, identities[name], name) for name in ("north", "south")}


def test_two_nodes_behind_one_port(
    identities: Identities, two: dict[str, Address], proxy: Proxy
) -> None:
    """Pre-flight and channel ask for the same name: the certificate's."""
    front = proxy({f"{name}.site.fedelmy": place for name, place in two.items()})
    for name in two:
        front.asked.clear()
        assert met(front.at(), identities["operator"], name) == name
        assert front.asked == [f"{name}.site.fedelmy"] * 2


def test_a_site_that_is_not_named_is_asked_for_by_the_name_of_its_host(
    identities: Identities, two: dict[str, Address], proxy: Proxy
) -> None:
    front = proxy(
        {
            "localhost": two["south"],
            **{f"{name}.site.fedelmy": place for name, place in two.items()},
        }
    )
    assert met(front.at("localhost"), identities["north"]) == "south"
    assert front.asked == ["localhost", "south.site.fedelmy", "south.site.fedelmy"]


def test_a_number_is_no_name(identities: Identities, two: dict[str, Address], proxy: Proxy) -> None:
    """Nothing can be asked for; a proxy may have one way for that, and one that has none hangs up."""
    front = proxy({None: two["south"], "south.site.fedelmy": two["south"]})
    assert met(front.at(), identities["north"]) == "south"
    assert front.asked == [None, "south.site.fedelmy", "south.site.fedelmy"]
    del front.ways[None]
    with pytest.raises(FedelmyError, match=r"E-IDENTITY-TLS.*hangs up") as raised:
        met(front.at(), identities["north"])
    assert "SITE=HOST:PORT" in str(raised.value.hint)


def test_a_name_that_the_proxy_does_not_know_is_told(
    identities: Identities, two: dict[str, Address], proxy: Proxy
) -> None:
    with pytest.raises(FedelmyError, match=r"E-IDENTITY-TLS.*hangs up") as raised:
        met(proxy({"north.site.fedelmy": two["north"]}).at(), identities["north"], "south")
    assert "must route south.site.fedelmy to the node" in str(raised.value.hint)


def test_a_proxy_that_leads_two_names_to_two_sites_is_told(
    identities: Identities, two: dict[str, Address], proxy: Proxy
) -> None:
    front = proxy({"localhost": two["south"], "south.site.fedelmy": two["north"]})
    with pytest.raises(
        FedelmyError, match=r"E-IDENTITY-SITE.*site/south if localhost.*site/north if south"
    ):
        met(front.at("localhost"), identities["north"])
    with pytest.raises(FedelmyError, match="E-IDENTITY-SITE"):
        met(front.at(), identities["north"], "south")


CASES = {
    "alternative name": (
        ("fl.south.example", "b.example"),
        {"san": "fl.south.example"},
        ["fl.south.example"] * 2,
    ),
    "not its first": (
        ("a.example", "fl.south.example"),
        {"san": "fl.south.example"},
        ["fl.south.example"] * 2,
    ),
    "wildcard": (("*.south.example",), {"san": "*.south.example"}, ["any.south.example"] * 2),
    "common name": ((), {"distinguished": "CN=node1.south,C=DE"}, ["node1.south"] * 2),
    "found out": (
        ("fl.south.example",),
        {"distinguished": "CN=node1.south,C=DE"},
        ["node1.south", "fl.south.example", "fl.south.example"],
    ),
}


@pytest.mark.parametrize(("sans", "rule", "asked"), CASES.values(), ids=CASES)
def test_names_that_a_hospital_chose(
    hospital: Hospital,
    serve: Serve,
    proxy: Proxy,
    tmp_path: Path,
    sans: tuple[str, ...],
    rule: dict[str, str],
    asked: list[str],
) -> None:
    """The name that this site knows the other's certificate by is the one to ask for."""
    rules = TrustRules(
        names=(NameRule(subject=SOUTH, **rule), NameRule(subject=NORTH, san="fl.north.example"))  # type: ignore[arg-type]
    )
    homes = {}
    names = {SOUTH: ("CN=node1.south,C=DE", sans), NORTH: ("CN=node7,C=DE", ("fl.north.example",))}
    for subject, (distinguished, others) in names.items():
        home = homes[subject] = tmp_path / subject.name
        keystore.init(home, subject.name, "site")
        signed = hospital.certify(home / "request.csr", subject=distinguished, sans=others)
        keystore.install(home, signed, hospital.root_file)
    front = proxy(dict.fromkeys(asked, named(serve, LiveIdentity(homes[SOUTH], rules), "south")))
    assert met(front.at(), keystore.load(homes[NORTH], rules), "south") == "south"
    assert front.asked == asked
