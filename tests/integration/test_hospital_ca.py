"""Certificates of a hospital's CA: RSA root, intermediate, its own names; and trust that changes
under open streams.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from fedelmy_launcher.ca import authority
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.domain.subject import NameRule, Subject, TrustRules
from fedelmy_node.identity import keystore
from fedelmy_node.identity.certificates import parse_certificates, to_pem
from fedelmy_node.identity.live_identity import LiveIdentity
from fedelmy_node.rpc.authorization import caller, recheck
from fedelmy_node.rpc.channel import open_channel, probe
from fedelmy_node.rpc.error_mapping import map_errors
from tests.support.hospital import Hospital

Serve = Callable[..., Address]
SOUTH, NORTH = Subject.of("south", "site"), Subject.of("north", "site")
ALICE = Subject.of("alice", "operator")
NAMES = {
    SOUTH: {"sans": ("fl.south.example",), "subject": "CN=fl.south.example,O=South Hospital,C=DE"},
    NORTH: {"subject": "CN=node7,O=North Clinic,C=DE"},  # old CAs give no alternative names at all
    ALICE: {"sans": ("alice.study.example",), "subject": "CN=Alice,O=South Hospital,C=DE"},
}
RULES = TrustRules(
    names=(
        NameRule(subject=SOUTH, san="fl.south.example"),
        NameRule(subject=NORTH, distinguished="CN=node7,O=North Clinic,C=DE"),
        NameRule(subject=ALICE, san="alice.study.example"),
    )
)


@pytest.fixture
def homes(tmp_path: Path, hospital: Hospital) -> dict[Subject, Path]:
    found = {}
    for subject, names in NAMES.items():
        home = found[subject] = tmp_path / f"{subject.name}.{subject.role}"
        keystore.init(home, subject.name, subject.role)
        keystore.install(home, hospital.certify(home / "request.csr", **names), hospital.root_file)  # type: ignore[arg-type]
    return found


def who_am_i(address: Address, home: Path, rules: TrustRules = RULES, site: str = "south") -> bytes:
    identity = keystore.load(home, rules)
    channel = open_channel(address, identity, expect_role="site", expect_site=SiteName(site))
    with channel, map_errors(site):
        answer: bytes = channel.unary_unary("/test.Echo/WhoAmI")(b"", timeout=60)
        return answer


def test_a_call_works_in_every_direction(homes: dict[Subject, Path], serve: Serve) -> None:
    south = serve(LiveIdentity(homes[SOUTH], RULES))
    assert who_am_i(south, homes[NORTH]) == b"site/north"
    assert who_am_i(south, homes[ALICE]) == b"operator/alice"
    north = serve(LiveIdentity(homes[NORTH], RULES))  # whose certificate has only a common name
    assert who_am_i(north, homes[SOUTH], site="north") == b"site/south"


def test_what_is_not_mapped_is_refused_on_both_sides(
    homes: dict[Subject, Path], serve: Serve
) -> None:
    only_south = TrustRules(names=RULES.names[:1])
    with pytest.raises(FedelmyError, match=r"E-IDENTITY-UNTRUSTED.*CN=node7,O=North Clinic"):
        who_am_i(serve(LiveIdentity(homes[SOUTH], only_south)), homes[NORTH])
    with pytest.raises(FedelmyError, match=r"E-IDENTITY-UNTRUSTED.*fl.south.example"):
        who_am_i(serve(LiveIdentity(homes[SOUTH], RULES)), homes[NORTH], TrustRules())


def test_both_kinds_of_ca_in_one_federation(
    homes: dict[Subject, Path], hospital: Hospital, serve: Serve, tmp_path: Path
) -> None:
    """A site of the hospital and one of the study's own CA trust both."""
    authority.init(tmp_path / "ca")
    both = tmp_path / "both.pem"
    both.write_bytes(hospital.root_file.read_bytes() + (tmp_path / "ca" / "ca.pem").read_bytes())
    west = tmp_path / "west"
    keystore.init(west, "west", "site")
    keystore.install(
        west,
        authority.sign(tmp_path / "ca", west / "request.csr", tmp_path / "west.pem").path,
        both,
    )
    south = hospital.certify(homes[SOUTH] / "request.csr", **NAMES[SOUTH])  # type: ignore[arg-type]
    keystore.install(homes[SOUTH], south, both)
    assert who_am_i(serve(LiveIdentity(homes[SOUTH], RULES)), west) == b"site/west"
    assert who_am_i(serve(LiveIdentity(west, RULES)), homes[SOUTH], site="west") == b"site/south"


def test_an_issuing_ca_alone_can_be_trusted(
    homes: dict[Subject, Path], hospital: Hospital, serve: Serve, tmp_path: Path
) -> None:
    """Some hospitals hand out no root."""
    issuing = tmp_path / "issuing.pem"
    issuing.write_bytes(to_pem(hospital.intermediate))
    for home in homes.values():
        (home / "ca.pem").write_bytes(issuing.read_bytes())
    assert who_am_i(serve(LiveIdentity(homes[SOUTH], RULES)), homes[NORTH]) == b"site/north"


def stream_of(turn: threading.Semaphore) -> object:
    def stream(_: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        while turn.acquire(timeout=30):
            recheck(context)
            yield str(caller(context)).encode()

    return grpc.unary_stream_rpc_method_handler(stream)


def test_an_open_stream_ends_when_its_caller_is_revoked(
    homes: dict[Subject, Path], hospital: Hospital, serve: Serve
) -> None:
    turn = threading.Semaphore(1)
    address = serve(LiveIdentity(homes[SOUTH], RULES), more={"Long": stream_of(turn)})
    north = keystore.load(homes[NORTH], RULES)
    with open_channel(address, north, expect_role="site") as channel:
        answers = channel.unary_stream("/test.Echo/Long")(b"", timeout=30)
        assert next(answers) == b"site/north"
        file = hospital.revoke(_leaf(homes[NORTH]))
        keystore.install_lists(homes[SOUTH], file.read_bytes(), str(file))
        turn.release()
        with (
            pytest.raises(FedelmyError, match=r"E-IDENTITY-REVOKED.*site/north"),
            map_errors("south"),
        ):
            next(answers)


def test_an_open_stream_survives_a_rotation_of_the_server(
    homes: dict[Subject, Path], hospital: Hospital, serve: Serve
) -> None:
    turn = threading.Semaphore(1)
    address = serve(LiveIdentity(homes[SOUTH], RULES), more={"Long": stream_of(turn)})
    north = keystore.load(homes[NORTH], RULES)
    with open_channel(address, north, expect_role="site") as channel:
        answers = channel.unary_stream("/test.Echo/Long")(b"", timeout=30)
        assert next(answers) == b"site/north"
        request = keystore.rotate(homes[SOUTH])
        keystore.install(homes[SOUTH], hospital.certify(request.path, **NAMES[SOUTH]))  # type: ignore[arg-type]
        turn.release()
        assert next(answers) == b"site/north"
        assert probe(address, north, expect_role="site").fingerprint == request.fingerprint
        answers.cancel()


def _leaf(home: Path) -> x509.Certificate:
    return parse_certificates((home / "certificate.pem").read_bytes(), "test")[0]
