"""`fedelmy-node doctor` finds what is wrong and says what to do: real servers, certificates, files
and disks.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from PIL import Image

from fedelmy_launcher.ca import authority
from fedelmy_node import __version__
from fedelmy_node.cli.doctor import doctor
from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.names import Address
from fedelmy_node.identity import keystore
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.node import Node
from tests.integration.support.serving import lay_down, serving

Identities = Mapping[str, Identity]
Finding = Mapping[str, Any]
Serve = Callable[..., Address]

TOML = """
[federation]
name = "small"

[[sites]]
name = "north"
address = "127.0.0.1:50051"

[task]
classes = [{classes}]
input = {{ height = 8, width = 8, channels = 1 }}

[model]
name = "mlp"

[training]
epochs = 3
batch_size = 4
threads = 1

[strategy]
pool_size = 2
warmup_epochs = 1
"""


@pytest.fixture
def north(tmp_path: Path, identities: Identities) -> Path:
    return lay_down(tmp_path / "north", identities["north"])


@pytest.fixture
def south(tmp_path: Path, identities: Identities) -> Iterator[Node]:
    """The node of south, answering."""
    state = lay_down(tmp_path / "south", identities["south"])
    node = Node(load_site_config(Given(state=state, listen="127.0.0.1:0", data="digits")))
    with serving(node):
        yield node


def call(state: Path, *arguments: str) -> Result:
    return CliRunner().invoke(
        doctor,
        ["--state", str(state), "--listen", "127.0.0.1:0", *arguments],
        standalone_mode=False,
    )


def look(state: Path, *arguments: str) -> list[Finding]:
    """What the doctor found, as machines read it."""
    done = call(state, "--json", *arguments)
    assert done.exception is None, done.output
    whole = json.loads(done.stdout)
    findings: list[Finding] = whole["findings"]
    worst = max(
        (finding["verdict"] for finding in findings), key=["ok", "warning", "failure"].index
    )
    assert whole["verdict"] == worst
    assert (done.return_value == 0) == (worst != "failure")
    for finding in findings:
        assert (finding["verdict"] == "ok") == (not finding["fix"]), finding
    return findings


def about(findings: Sequence[Finding], subject: str) -> dict[str, Finding]:
    return {
        finding["check"]: finding for finding in findings if finding["subject"].startswith(subject)
    }


def wrong(findings: Sequence[Finding], subject: str) -> Finding:
    """The one thing that is not ok about a subject."""
    (found,) = (each for each in about(findings, subject).values() if each["verdict"] != "ok")
    return found


def peer(state: Path, address: str, name: str = "south") -> list[Finding]:
    return look(state, "--peer", f"{name}={address}")


# --- nothing is wrong
# ---------------------------------------------------------------------------------------------


def test_a_site_that_is_well(north: Path, south: Node) -> None:
    before = sorted(path.relative_to(north) for path in north.rglob("*"))
    findings = peer(north, south.address)
    way = about(findings, "peer south")
    assert list(way) == ["tcp", "tls", "alpn", "certificate", "version", "clock", "speed"]
    assert {finding["verdict"] for finding in way.values()} == {"ok"}
    assert (
        way["speed"]["facts"]["bytes_per_second"] > 10**3
        and way["speed"]["facts"]["round_trip_seconds"] < 60
    )
    assert abs(way["clock"]["facts"]["skew_seconds"]) < 60
    assert {finding["verdict"] for finding in about(findings, "identity").values()} == {"ok"}
    assert sorted(path.relative_to(north) for path in north.rglob("*")) == before, (
        "the doctor changes nothing"
    )


def test_a_daemon_that_runs_is_asked_for_its_health(south: Node) -> None:
    found = about(look(south._config.state, "--listen", south.address), "node")
    assert "serves on" in found["daemon"]["message"] and found["daemon"]["verdict"] == "ok"


def test_the_address_for_others_leads_back_or_it_is_a_warning(
    north: Path, south: Node, tmp_path: Path, identities: Identities, own_ca: Path
) -> None:
    """Never a failure: a network may not let its machines call themselves from outside."""
    place, state = south.address.replace("127.0.0.1", "localhost"), south._config.state

    def told(place: str, state: Path = state) -> Finding:
        return about(look(state, "--data", "digits", "--advertise", place), "node")["advertise"]

    assert told(place)["message"] == f"{place} leads back to this node"
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nowhere = f"localhost:{gone.getsockname()[1]}"
    away = told(nowhere)
    assert (away["verdict"], away["code"]) == ("warning", "E-PEER-UNREACHABLE")
    assert "hairpin" in away["fix"] and f"fedelmy-node doctor --peer south={nowhere}" in away["fix"]
    assert "not tested" in told(place, north)["message"], "no daemon of north runs"
    other = Node(
        load_site_config(Given(state=north, listen="127.0.0.1:0", data="digits", advertise=nowhere))
    )
    with serving(other):
        assert (told(other.address)["verdict"], told(other.address)["code"]) == (
            "warning",
            "E-IDENTITY-SITE",
        )
        lines = call(north, "--advertise", place).output
        assert f"the daemon advertises {nowhere}, these settings say {place}" in lines


def test_another_node_with_our_name(
    south: Node, serve: Serve, forge: Callable[..., Identity]
) -> None:
    twin = serve(forge("south.site.fedelmy"))
    found = about(look(south._config.state, "--data", "digits", "--advertise", twin), "node")[
        "advertise"
    ]
    assert (found["verdict"], found["code"]) == ("warning", "E-IDENTITY-SITE")
    assert "another node with a certificate of south" in found["message"]


def test_each_line_has_its_mark_and_each_fault_its_fix_below(north: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    done = call(north, "--peer", f"south={address}")
    assert done.return_value == 6  # that of the first failure, not of the missing --data
    lines = done.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if "nothing listens there" in line)
    assert lines[at].split()[:2] == ["failure", "tcp"]
    assert (
        lines[at + 1]
        .strip()
        .startswith("E-PEER-UNREACHABLE: Start the node there, or correct the port")
    )
    assert lines[-1].endswith("2 failures")
    assert "\x1b" not in done.stdout


# --- ten faults
# ---------------------------------------------------------------------------------------------------


def test_wrong_port(north: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    found = wrong(peer(north, address), "peer")
    assert (found["check"], found["verdict"], found["code"]) == (
        "tcp",
        "failure",
        "E-PEER-UNREACHABLE",
    )
    assert "correct the port" in found["fix"]


def test_wrong_ca(north: Path, tmp_path: Path, serve: Serve) -> None:
    authority.init(tmp_path / "other-ca")
    keystore.init(tmp_path / "stranger", "south", "site")
    signed = authority.sign(
        tmp_path / "other-ca", tmp_path / "stranger" / "request.csr", tmp_path / "s.pem"
    )
    stranger = keystore.install(tmp_path / "stranger", signed.path)
    findings = peer(north, serve(stranger))
    assert about(findings, "peer")["tls"]["message"] == "TLSv1.3 is supported"
    found = wrong(findings, "peer")
    assert (found["check"], found["code"]) == ("certificate", "E-IDENTITY-UNTRUSTED")
    other = x509.load_pem_x509_certificate(stranger.ca_pem).subject.rfc4514_string()
    assert other in found["message"] and "compare their ca.pem" in found["fix"]


def test_wrong_name(north: Path, south: Node) -> None:
    found = wrong(peer(north, south.address, "east"), "peer")
    assert (found["check"], found["code"]) == ("certificate", "E-IDENTITY-SITE")
    assert "'south'" in found["message"] and "If south is meant, use that name" in found["fix"]


@pytest.mark.parametrize(
    ("begins", "ends", "words"), [(-2, -1, "expired on"), (1, 2, "is not valid before")]
)
def test_our_own_certificate_outside_its_dates(
    tmp_path: Path, forge: Callable[..., Identity], begins: float, ends: float, words: str
) -> None:
    state = lay_down(tmp_path / "s", forge(begins_days=begins, ends_days=ends))
    found = wrong(look(state), "identity")
    assert (found["check"], found["verdict"], found["code"]) == (
        "dates",
        "failure",
        "E-IDENTITY-EXPIRED",
    )
    assert words in found["message"] and f"{datetime.now(UTC):%Y-%m-%d}" in found["message"]
    assert (
        "If the clock is wrong, correct it" in found["fix"] and "identity install" in found["fix"]
    )


def test_a_certificate_that_expires_soon_is_a_warning(
    tmp_path: Path, forge: Callable[..., Identity]
) -> None:
    state = lay_down(tmp_path / "s", forge(ends_days=5))
    found = wrong(look(state), "identity")
    assert (found["check"], found["verdict"]) == ("dates", "warning")
    assert "5 more days" in found["message"] and "sign" in found["fix"]


def test_an_expired_peer(north: Path, serve: Serve, forge: Callable[..., Identity]) -> None:
    found = wrong(peer(north, serve(forge(ends_days=-0.5))), "peer")
    assert (found["check"], found["code"]) == ("certificate", "E-IDENTITY-EXPIRED")
    assert "has expired" in found["message"] and "clock" in found["fix"]


def answers(node: Node, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """The node says something else of itself."""
    true = node.peer.measured
    monkeypatch.setattr(node.peer, "measured", lambda received: replace(true(received), **changes))


def test_clock_skew(north: Path, south: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(south, monkeypatch, clock=time.time() - 7200)
    found = wrong(peer(north, south.address), "peer")
    assert (found["check"], found["verdict"], found["code"]) == ("clock", "warning", "E-PEER-CLOCK")
    assert "2 h 0 min behind" in found["message"] and "set-ntp" in found["fix"]


def test_version_mismatch(north: Path, south: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(south, monkeypatch, version="0.0.9")
    found = wrong(peer(north, south.address), "peer")
    assert (found["check"], found["verdict"]) == ("version", "warning")
    assert (
        "0.0.9" in found["message"]
        and __version__ in found["message"]
        and "same version" in found["fix"]
    )


def test_contract_mismatch(north: Path, south: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(south, monkeypatch, version="9.0", contracts=("fedelmy.v2",))
    found = wrong(peer(north, south.address), "peer")
    assert (found["check"], found["verdict"], found["code"]) == (
        "version",
        "failure",
        "E-PEER-CONTRACT",
    )
    assert "fedelmy.v2" in found["message"] and "fedelmy.v1" in found["message"] and found["fix"]


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"this user may not mount: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=False, capture_output=True)


def write_toml(directory: Path, *classes: str) -> str:
    file = directory / "federation.toml"
    file.write_text(TOML.format(classes=", ".join(f'"{name}"' for name in classes)))
    return str(file)


def test_no_disk(tmp_path: Path, identities: Identities) -> None:
    state = tmp_path / "full"
    state.mkdir()
    federation = write_toml(tmp_path, *map(str, range(10)))
    with small_disk(state):
        lay_down(state, identities["north"])
        found = wrong(look(state, "--data", "digits", "--federation", federation), "disk")
        assert (found["check"], found["verdict"], found["code"]) == (
            "room",
            "failure",
            "E-STORE-DISK",
        )
        assert (
            "Free disk space" in found["fix"]
            and found["facts"]["free_bytes"] < found["facts"]["needed_bytes"]
        )
        subprocess.run(["mount", "-o", "remount,ro", str(state)], check=True)
        found = wrong(look(state), "disk")
        assert (found["check"], found["code"]) == (
            "place",
            "E-STORE-UNWRITABLE",
        ) and "read-only" in found["message"]


def test_no_data(north: Path, tmp_path: Path) -> None:
    found = wrong(look(north), "data")
    assert (found["verdict"], found["code"]) == ("failure", "E-DATA-SOURCE") and "--data" in found[
        "fix"
    ]
    found = wrong(look(north, "--data", f"imagefolder:{tmp_path}/nothing"), "data")
    assert found["code"] == "E-DATA-MISSING" and "path given with --data" in found["fix"]
    assert str(tmp_path) not in found["message"] and str(tmp_path) in found["private"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of ten images."""
    for name in ("healthy", "pneumonia"):
        (tmp_path / "xray" / name).mkdir(parents=True)
        for number in range(10):
            Image.new("L", (8, 8), 20 * number).save(tmp_path / "xray" / name / f"{number}.png")
    return tmp_path / "xray"


def test_unreadable_image(north: Path, tmp_path: Path, folder: Path) -> None:
    (folder / "healthy" / "smith.png").write_bytes(b"not an image")
    federation = write_toml(tmp_path, "healthy", "pneumonia")
    found = wrong(
        look(north, "--data", f"imagefolder:{folder}", "--federation", federation), "data"
    )
    assert (found["check"], found["verdict"], found["code"]) == (
        "readable",
        "failure",
        "E-DATA-UNREADABLE",
    )
    assert found["message"] == "1 file(s) cannot be read" and "smith.png" in found["private"]
    assert 'unreadable = "skip"' in found["fix"]


def test_missing_class(north: Path, tmp_path: Path, folder: Path) -> None:
    federation = write_toml(tmp_path, "healthy", "pneumonia", "covid")
    findings = look(north, "--data", f"imagefolder:{folder}", "--federation", federation)
    found = wrong(findings, "data")
    assert (found["check"], found["verdict"], found["code"]) == (
        "classes",
        "warning",
        "E-DATA-CLASS",
    )
    assert (
        "'covid'" in found["message"]
        and "give their folder or label exactly this name" in found["fix"]
    )
    device = about(findings, "device")
    assert (
        device["trial"]["facts"]["batches"] == 5
        and device["trial"]["facts"]["seconds_per_batch"] > 0
    )
    assert device["time"]["facts"]["seconds"] > 0 and "7 epochs" in device["time"]["message"]


def test_without_a_federation_the_data_are_read_all_the_same(north: Path, folder: Path) -> None:
    (folder / "healthy" / "smith.png").write_bytes(b"not an image")
    (north / "site.toml").write_text(
        f'[data]\nsource = "imagefolder:{folder}"\nunreadable = "skip"\n'
    )
    findings = look(north)
    found = about(findings, "data")
    assert found["classes"]["facts"]["class_counts"] == {"healthy": 10, "pneumonia": 10}
    assert found["readable"]["verdict"] == "warning"  # the site said so
    assert "--federation" in about(findings, "plan")["federation"]["message"]
    assert "trial" not in about(findings, "device")


def test_an_unknown_class(north: Path, tmp_path: Path, folder: Path) -> None:
    federation = write_toml(tmp_path, "healthy", "Pneumonia")
    text = Path(federation).read_text()
    Path(federation).write_text(
        text.replace(text[text.index("[[sites]]") : text.index("[task]")], "")
    )  # as for --head
    found = wrong(
        look(north, "--data", f"imagefolder:{folder}", "--federation", federation), "data"
    )
    assert (found["verdict"], found["code"]) == ("failure", "E-DATA-CLASS")
    assert "did you mean 'Pneumonia'?" in found["private"] and "Rename" in found["fix"]


# --- what stands in between
# ---------------------------------------------------------------------------------------


def proxy_certificate(directory: Path) -> Path:
    """What a proxy that opens TLS shows: the right name, of its own CA."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Hospital Web Proxy CA")])
    builder = x509.CertificateBuilder(
        subject_name=x509.Name([]), issuer_name=issuer, public_key=key.public_key()
    )
    builder = (
        builder.serial_number(1)
        .not_valid_before(now - timedelta(1))
        .not_valid_after(now + timedelta(1))
    )
    names = x509.SubjectAlternativeName([x509.DNSName("south.site.fedelmy")])
    leaf = builder.add_extension(names, critical=True).sign(
        ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = directory / "proxy.pem"
    file.write_bytes(private + leaf.public_bytes(serialization.Encoding.PEM))
    return file


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))

    def work() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    answer(connection)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def tls_server(file: Path, alpn: list[str]) -> Callable[[socket.socket], None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    if alpn:
        context.set_alpn_protocols(alpn)

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.recv(1)

    return answer


def test_a_proxy_that_opens_tls(north: Path, tmp_path: Path) -> None:
    with listening(tls_server(proxy_certificate(tmp_path), ["h2"])) as address:
        found = wrong(peer(north, address), "peer")
    assert (found["check"], found["code"]) == ("certificate", "E-IDENTITY-UNTRUSTED")
    assert "Hospital Web Proxy CA" in found["message"]
    assert "proxy or an antivirus that opens TLS" in found["fix"]


def test_a_proxy_without_h2(north: Path, tmp_path: Path, identities: Identities) -> None:
    """It has the site's own certificate, as one that ends TLS before the node may have."""
    file = tmp_path / "south.pem"
    file.write_bytes(identities["south"].key_pem + identities["south"].certificate_pem)
    with listening(tls_server(file, [])) as address:
        found = wrong(peer(north, address), "peer")
    assert (found["check"], found["code"]) == ("alpn", "E-PEER-PROTOCOL")
    assert (
        "no protocol" in found["message"] and "proxy" in found["fix"] and "ALPN h2" in found["fix"]
    )


def test_a_plain_web_server(north: Path) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(1)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with listening(answer) as address:
        found = wrong(peer(north, address), "peer")
    assert (found["check"], found["code"]) == ("tls", "E-IDENTITY-TLS") and "proxy" in found["fix"]


def test_a_name_that_is_not_known(north: Path) -> None:
    found = wrong(peer(north, "south.invalid:50051"), "peer")
    assert (found["check"], found["code"]) == (
        "dns",
        "E-PEER-UNREACHABLE",
    ) and "getent hosts" in found["fix"]


def test_a_peer_of_older_software(north: Path, identities: Identities, serve: Serve) -> None:
    """It does not know the call that measures: nothing is broken."""
    found = wrong(peer(north, serve(identities["south"])), "peer")
    assert (found["check"], found["verdict"]) == (
        "version",
        "warning",
    ) and "older software" in found["message"]


# --- this machine
# -------------------------------------------------------------------------------------------------


def test_a_certificate_for_servers_only(tmp_path: Path, forge: Callable[..., Identity]) -> None:
    state = lay_down(tmp_path / "s", forge(usages=(ExtendedKeyUsageOID.SERVER_AUTH,)))
    found = wrong(look(state), "identity")
    assert (
        found["code"] == "E-IDENTITY-FILE"
        and "clientAuth" in found["message"]
        and "both" in found["fix"]
    )


def test_no_identity_but_the_peers_are_looked_at_as_far_as_one_can(
    tmp_path: Path, south: Node
) -> None:
    findings = peer(tmp_path / "nothing", south.address)
    assert wrong(findings, "identity")["code"] == "E-IDENTITY-MISSING"
    way = about(findings, "peer")
    assert way["tcp"]["verdict"] == "ok" and way["tls"]["verdict"] == "warning"
    assert not (tmp_path / "nothing").exists()


def test_a_key_that_others_can_read(north: Path) -> None:
    (north / "identity" / "key.pem").chmod(0o644)
    found = wrong(look(north), "identity")
    assert found["code"] == "E-IDENTITY-FILE" and "chmod 600" in found["fix"]


def test_a_port_in_use(north: Path, south: Node) -> None:
    found = wrong(look(north, "--listen", south.address), "node")
    assert (found["check"], found["code"]) == ("port", "E-CONFIG-PORT") and "--listen" in found[
        "fix"
    ]
