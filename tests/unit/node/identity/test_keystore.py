"""The four files of an identity: made, installed, renewed, loaded, and refused when something is
wrong.
"""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography import x509

from fedelmy_launcher.ca import authority
from fedelmy_node.domain.errors import FedelmyError, IdentityError, StoreError
from fedelmy_node.domain.subject import Subject
from fedelmy_node.identity import keystore
from fedelmy_node.identity.keys import read_key
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.live_identity import LiveIdentity
from fedelmy_node.identity.requests import make_request
from fedelmy_node.store.durable_files import write_durably

_P256 = bytes.fromhex("2a8648ce3d030107")
"""How a key names its curve."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An identity directory whose key was made, but not certified."""
    directory = tmp_path / "state" / "identity"
    keystore.init(directory, "east", "site")
    return directory


def sign(federation_ca: Path, home: Path, days: int = 30) -> Path:
    return authority.sign(
        federation_ca, home / "request.csr", home.parent / "east.pem", days=days, replace=True
    ).path


def test_init_makes_a_private_key(home: Path) -> None:
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / "key.pem").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in home.iterdir()) == ["key.pem", "request.csr"]


def test_init_never_overwrites_and_pending_repeats(home: Path, tmp_path: Path) -> None:
    key = (home / "key.pem").read_bytes()
    with pytest.raises(IdentityError, match="E-IDENTITY-EXISTS"):
        keystore.init(home, "east", "site")
    assert (home / "key.pem").read_bytes() == key
    request = keystore.pending(home)
    assert str(request.subject) == "site/east"
    other = keystore.init(tmp_path / "other", "east", "site")
    assert request.fingerprint != other


def test_install_then_load(home: Path, federation_ca: Path) -> None:
    installed = keystore.install(home, sign(federation_ca, home))
    assert keystore.load(home) == installed
    assert str(installed.subject) == "site/east"
    assert installed.fingerprint == keystore.pending(home).fingerprint


def test_the_key_is_never_shown(identities: Mapping[str, Identity]) -> None:
    shown = repr(identities["north"])
    assert "north" in shown
    assert "PEM" not in shown and "PRIVATE" not in shown and "BEGIN" not in shown


def test_a_certificate_for_another_key_is_refused(
    home: Path, federation_ca: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    keystore.init(other, "east", "site")
    with pytest.raises(IdentityError, match="E-IDENTITY-MISMATCH"):
        keystore.install(home, sign(federation_ca, other))
    assert not keystore.is_installed(home)


def test_a_certificate_of_another_name_is_refused(
    home: Path, federation_ca: Path, tmp_path: Path
) -> None:
    request = make_request(Subject.of("eastern", "site"), read_key(home / "key.pem"))
    (tmp_path / "eastern.csr").write_bytes(request)
    signed = authority.sign(
        federation_ca, tmp_path / "eastern.csr", tmp_path / "eastern.pem", replace=True
    )
    with pytest.raises(IdentityError, match=r"E-IDENTITY-MISMATCH.*site/eastern.*site/east"):
        keystore.install(home, signed.path)
    assert not keystore.is_installed(home)


def test_a_request_of_another_key_is_noticed(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    keystore.init(other, "east", "site")
    (home / "request.csr").write_bytes((other / "request.csr").read_bytes())
    with pytest.raises(IdentityError, match="E-IDENTITY-MISMATCH"):
        keystore.pending(home)


def test_a_renewal_must_not_change_the_ca(home: Path, federation_ca: Path, tmp_path: Path) -> None:
    before = keystore.install(home, sign(federation_ca, home))
    authority.init(tmp_path / "impostor")
    with pytest.raises(IdentityError, match="E-IDENTITY-MISMATCH"):
        keystore.install(home, sign(tmp_path / "impostor", home))
    assert keystore.load(home) == before


@pytest.mark.parametrize(
    "content", [b"", b"not a certificate", b"\x00" * 100_000], ids=["empty", "text", "huge"]
)
def test_damaged_files_are_named(home: Path, federation_ca: Path, content: bytes) -> None:
    keystore.install(home, sign(federation_ca, home))
    for name in ("certificate.pem", "ca.pem", "key.pem"):
        whole = (home / name).read_bytes()
        (home / name).write_bytes(content)
        with pytest.raises(IdentityError, match=rf"E-IDENTITY-FILE.*{name}"):
            keystore.load(home)
        (home / name).write_bytes(whole)


def test_a_key_of_a_kind_that_nobody_knows_is_named(home: Path) -> None:
    """What one flipped bit makes of a key of ours."""
    lines = (home / "key.pem").read_bytes().splitlines()
    der = base64.b64decode(b"".join(lines[1:-1])).replace(_P256, _P256[:-1] + b"\x06")
    write_durably(home / "key.pem", b"\n".join((lines[0], base64.b64encode(der), lines[-1], b"")))
    with pytest.raises(IdentityError, match=r"E-IDENTITY-FILE.*key\.pem"):
        read_key(home / "key.pem")


def test_one_certificate_alone_is_not_installed(home: Path, federation_ca: Path) -> None:
    file = sign(federation_ca, home)
    leaf, _, _ = file.read_text().partition("-----END CERTIFICATE-----\n")
    file.write_text(leaf + "-----END CERTIFICATE-----\n")
    with pytest.raises(IdentityError, match="E-IDENTITY-FILE"):
        keystore.install(home, file)


def test_a_key_that_others_can_read_is_refused(home: Path, federation_ca: Path) -> None:
    keystore.install(home, sign(federation_ca, home))
    for mode in (0o640, 0o604):
        (home / "key.pem").chmod(mode)
        with pytest.raises(IdentityError, match="E-IDENTITY-FILE") as raised:
            keystore.load(home)
        assert "chmod 600" in raised.value.hint


def test_missing_identities_say_what_to_run(home: Path, tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="E-IDENTITY-MISSING") as raised:
        keystore.load(tmp_path / "nowhere")
    assert "identity init" in raised.value.hint
    with pytest.raises(IdentityError, match="E-IDENTITY-MISSING") as raised:
        keystore.load(home)
    assert (
        "identity install" in raised.value.hint and str(home / "request.csr") in raised.value.hint
    )


def test_bad_names_make_no_files(tmp_path: Path) -> None:
    with pytest.raises(FedelmyError, match="E-CONFIG-VALUE"):
        keystore.init(tmp_path / "identity", "North!", "site")
    assert not (tmp_path / "identity").exists()


def test_a_live_identity_follows_a_renewal(
    home: Path, federation_ca: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = keystore.install(home, sign(federation_ca, home, days=30))
    live = LiveIdentity(home)
    assert live() == first
    renewed = keystore.install(home, sign(federation_ca, home, days=60))
    assert live() == renewed != first
    write_durably(home / "certificate.pem", b"garbage", 0o644)
    with caplog.at_level(logging.ERROR):
        assert live() == renewed
        assert live() == renewed
    assert caplog.text.count("E-IDENTITY-FILE") == 1, (
        "a damaged renewal is reported once, not per call"
    )


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "certificate.pem"
    write_durably(path, b"old", 0o644)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"E-STORE-DISK.*No space left"):
        write_durably(path, b"new", 0o644)
    assert [file.name for file in tmp_path.iterdir()] == ["certificate.pem"]
    assert path.read_bytes() == b"old"


@pytest.mark.filterwarnings("ignore:Parsed a serial number which wasn't positive")
def test_a_flipped_bit_of_the_ca_is_found(federation_ca: Path, home: Path) -> None:
    """TLS may refuse a root that verifies our own certificate all the same."""
    whole = keystore.install(home, sign(federation_ca, home))
    data = (home / "ca.pem").read_bytes()
    refused = 0
    for place in range(0, 8 * len(data), 11):  # every byte, one of its bits after the other
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        (home / "ca.pem").write_bytes(changed)
        try:
            found = keystore.load(home)
        except IdentityError:
            refused += 1
        else:
            assert _signed(found) == _signed(whole), place
    assert refused > len(data) / 2


def _signed(identity: Identity) -> bytes:
    return x509.load_pem_x509_certificate(identity.ca_pem).tbs_certificate_bytes
