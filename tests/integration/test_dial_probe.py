"""The pre-flight names what is wrong: every way in which the other end can be the wrong one."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from fedelmy_launcher.ca import authority
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.names import Address, SiteName
from fedelmy_node.identity import keystore
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc import handshake
from fedelmy_node.rpc.channel import probe
from fedelmy_node.rpc.handshake import Probed

Identities = Mapping[str, Identity]
Forge = Callable[..., Identity]
Serve = Callable[..., Address]
Listen = Callable[[Callable[[socket.socket], None]], Address]

SETTINGS = b"\0\0\0\4\0\0\0\0\0"


@pytest.fixture
def listen() -> Iterator[Listen]:
    """A server made by hand: what it does with a connection is the test's business."""
    with ExitStack() as running:

        def start(answer: Callable[[socket.socket], None]) -> Address:
            listener = socket.create_server(("127.0.0.1", 0))

            def work() -> None:
                with suppress(OSError):  # the listener was closed, or the caller was not polite
                    while True:
                        connection, _ = listener.accept()
                        with connection, suppress(OSError):
                            answer(connection)

            thread = threading.Thread(target=work)
            thread.start()
            running.callback(thread.join, 60)
            running.callback(listener.close)
            running.callback(listener.shutdown, socket.SHUT_RDWR)
            return Address(f"127.0.0.1:{listener.getsockname()[1]}")

        yield start


@pytest.fixture
def stranger(tmp_path: Path) -> Identity:
    """An identity of another federation."""
    authority.init(tmp_path / "other-ca")
    keystore.init(tmp_path / "stranger", "south", "site")
    signed = authority.sign(
        tmp_path / "other-ca", tmp_path / "stranger" / "request.csr", tmp_path / "stranger.pem"
    )
    return keystore.install(tmp_path / "stranger", signed.path)


def tls(identity: Identity, tmp_path: Path, *, alpn: tuple[str, ...] = ("h2",)) -> ssl.SSLContext:
    """A server's TLS by the standard library, which can do what grpc's would not."""
    file = tmp_path / "server.pem"
    file.write_bytes(identity.key_pem + identity.certificate_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def speak(context: ssl.SSLContext, words: bytes) -> Callable[[socket.socket], None]:
    """Shake hands, say something, and wait until the other end has gone."""

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.sendall(words)
            secure.recv(1)

    return answer


def call(address: Address, identity: Identity, seconds: float = 60.0) -> Probed:
    with patch.object(handshake, "PROBE_SECONDS", seconds):
        return probe(address, identity, expect_site=SiteName("south"), expect_role="site")


def refusal(
    address: Address, identity: Identity, code: str, words: str, seconds: float = 60.0
) -> FedelmyError:
    with pytest.raises(FedelmyError, match=words) as raised:
        call(address, identity, seconds)
    assert raised.value.code == code
    return raised.value


def test_the_right_site_is_met(identities: Identities, serve: Serve) -> None:
    south = identities["south"]
    probed = call(serve(south), identities["north"])
    assert (probed.subject, probed.fingerprint) == (south.subject, south.fingerprint)
    assert (probed.certificate_pem, probed.not_after) == (south.certificate_pem, south.not_after)
    assert (probed.tls_version, probed.alpn) == ("TLSv1.3", "h2")
    assert 0 < probed.seconds < 60


def test_a_site_need_not_be_named(identities: Identities, serve: Serve) -> None:
    probed = probe(serve(identities["south"]), identities["north"], expect_role="site")
    assert probed.subject.name == "south"


def test_the_wrong_site_is_named(identities: Identities, serve: Serve) -> None:
    refusal(serve(identities["north"]), identities["north"], "E-IDENTITY-SITE", "'north'.*'south'")


def test_the_wrong_role_is_named(identities: Identities, serve: Serve) -> None:
    refusal(
        serve(identities["operator"]), identities["north"], "E-IDENTITY-ROLE", "operator/operator"
    )


def test_another_federation_is_named(
    identities: Identities, serve: Serve, stranger: Identity
) -> None:
    refusal(
        serve(stranger),
        identities["north"],
        "E-IDENTITY-UNTRUSTED",
        "does not belong to our federation",
    )


def test_an_expired_certificate_is_named(
    identities: Identities, serve: Serve, forge: Forge
) -> None:
    refusal(serve(forge(ends_days=-0.5)), identities["north"], "E-IDENTITY-EXPIRED", "has expired")


def test_a_future_certificate_is_named(identities: Identities, serve: Serve, forge: Forge) -> None:
    refusal(
        serve(forge(begins_days=0.5)), identities["north"], "E-IDENTITY-EXPIRED", "not valid yet"
    )


def test_our_own_expiry_is_named(identities: Identities, serve: Serve, forge: Forge) -> None:
    refusal(serve(identities["south"]), forge(ends_days=-0.5), "E-IDENTITY-EXPIRED", "our own")


def test_a_refusal_of_our_certificate_is_named(
    identities: Identities, serve: Serve, stranger: Identity
) -> None:
    """In TLS 1.3 our handshake succeeds before the server looks at our certificate."""
    distrustful = replace(identities["south"], trust=stranger.trust)
    refusal(
        serve(distrustful),
        identities["north"],
        "E-IDENTITY-UNTRUSTED",
        "refuses our certificate.*site/north",
    )


def test_a_clock_that_is_behind_is_named_by_its_own_certificate(
    identities: Identities, serve: Serve, forge: Forge
) -> None:
    """As for a site whose clock was set two days back while its node runs: nobody is asked, nobody
    blamed.
    """
    error = refusal(
        serve(identities["south"]),
        forge("north.site.fedelmy", begins_days=2, ends_days=9),
        "E-IDENTITY-EXPIRED",
        r"our own certificate is not valid before .* UTC; this machine's clock says \d{4}-",
    )
    assert "The clock here seems to be behind" in error.hint and "timedatectl" in error.hint


def test_a_clock_that_is_behind_is_named_by_the_other_ends_certificate(
    identities: Identities, serve: Serve, forge: Forge
) -> None:
    error = refusal(
        serve(forge(begins_days=2, ends_days=9)),
        identities["north"],
        "E-IDENTITY-EXPIRED",
        r"is not valid yet; it becomes valid on \d{4}-.* UTC; this machine's clock says \d{4}-",
    )
    assert "The clock here seems to be behind" in error.hint and "timedatectl" in error.hint
    error = refusal(
        serve(forge(ends_days=-0.5)),
        identities["north"],
        "E-IDENTITY-EXPIRED",
        "it expired on .*clock says",
    )
    assert "Have a new certificate signed there" in error.hint and "timedatectl" in error.hint


@pytest.mark.parametrize(
    ("begins", "ends", "there"),
    [(-1.0, 300.0, "behind there"), (-300.0, 1.0, "ahead there"), (-300.0, 300.0, "")],
)
def test_a_refusal_blames_a_clock_if_our_certificate_is_young_or_old(
    identities: Identities,
    serve: Serve,
    stranger: Identity,
    forge: Forge,
    begins: float,
    ends: float,
    there: str,
) -> None:
    """A gRPC server refuses a certificate that its clock forbids as it refuses any other: without a
    word.
    """
    distrustful = replace(identities["south"], trust=stranger.trust)
    north = forge("north.site.fedelmy", begins_days=begins, ends_days=ends)
    error = refusal(
        serve(distrustful),
        north,
        "E-IDENTITY-UNTRUSTED",
        r"refuses our certificate .*valid from \d{4}-",
    )
    assert (there or "clocks of both ends") in error.hint
    assert (
        ("this machine's clock says" in error.message)
        == ("timedatectl" in error.hint)
        == bool(there)
    )


@pytest.mark.parametrize("shakes_hands", [True, False])
def test_a_server_that_stops_meanwhile_is_unreachable(
    identities: Identities, tmp_path: Path, shakes_hands: bool
) -> None:
    """It hangs up just like one that refuses our certificate, or one that does not speak TLS."""
    context = tls(identities["south"], tmp_path)
    listener = socket.create_server(("127.0.0.1", 0))

    def stop() -> None:
        connection, _ = listener.accept()
        listener.close()
        if shakes_hands:
            connection = context.wrap_socket(connection, server_side=True)
        connection.close()

    thread = threading.Thread(target=stop)
    thread.start()
    address = Address(f"127.0.0.1:{listener.getsockname()[1]}")
    refusal(address, identities["north"], "E-PEER-UNREACHABLE", "nothing listens")
    thread.join(10)


def test_plaintext_grpc_is_named(identities: Identities, serve: Serve) -> None:
    refusal(serve(None), identities["north"], "E-IDENTITY-TLS", "does not answer with TLS")


def test_plaintext_that_hangs_up_is_named(identities: Identities, listen: Listen) -> None:
    address = listen(lambda connection: connection.recv(1) and None)
    refusal(address, identities["north"], "E-IDENTITY-TLS", "during the handshake")


def test_old_tls_is_named(identities: Identities, listen: Listen, tmp_path: Path) -> None:
    context = tls(identities["south"], tmp_path)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    refusal(listen(speak(context, b"")), identities["north"], "E-IDENTITY-TLS", r"older than 1\.3")


@pytest.mark.parametrize("alpn", [(), ("http/1.1",)], ids=["none", "http/1.1"])
def test_a_web_server_is_named(
    identities: Identities, listen: Listen, tmp_path: Path, alpn: tuple[str, ...]
) -> None:
    context = tls(identities["south"], tmp_path, alpn=alpn)
    refusal(
        listen(speak(context, b"")), identities["north"], "E-PEER-PROTOCOL", "not a fedelmy node"
    )


def test_something_else_over_h2_is_named(
    identities: Identities, listen: Listen, tmp_path: Path
) -> None:
    address = listen(speak(tls(identities["south"], tmp_path), b"HTTP/1.1 200 OK\r\n"))
    refusal(address, identities["north"], "E-PEER-PROTOCOL", "not speak HTTP/2")


def test_silence_after_the_handshake_is_named(
    identities: Identities, listen: Listen, tmp_path: Path
) -> None:
    address = listen(speak(tls(identities["south"], tmp_path), SETTINGS[:5]))
    refusal(address, identities["north"], "E-PEER-PROTOCOL", "does not start", seconds=0.5)


def test_silence_before_the_handshake_is_named(identities: Identities) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = Address(f"127.0.0.1:{deaf.getsockname()[1]}")
        refusal(address, identities["north"], "E-PEER-UNREACHABLE", "does not answer", seconds=0.2)


def test_nobody_listening_is_named(identities: Identities) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = Address(f"127.0.0.1:{gone.getsockname()[1]}")
    refusal(address, identities["north"], "E-PEER-UNREACHABLE", "nothing listens")


@pytest.mark.parametrize(
    "host", ["south.invalid", "a" * 80 + ".invalid"], ids=["unknown", "label too long"]
)
def test_an_unresolvable_name_is_named(identities: Identities, host: str) -> None:
    refusal(Address(f"{host}:50051"), identities["north"], "E-PEER-UNREACHABLE", "cannot reach")


def test_session_keys_are_not_logged(
    identities: Identities, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    call(serve(identities["south"]), identities["north"])
    assert not (tmp_path / "keys").exists()


def test_ipv6_addresses_are_dialled(identities: Identities, tmp_path: Path) -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with listener:
        address = Address(f"[::1]:{listener.getsockname()[1]}")
        refusal(address, identities["north"], "E-PEER-UNREACHABLE", "does not answer", seconds=0.2)
