"""A new key beside the old one: usable at every moment, and picked up by whoever runs already."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from fedelmy_launcher.ca import authority
from fedelmy_node.domain.errors import IdentityError
from fedelmy_node.identity import keystore
from fedelmy_node.identity.live_identity import LiveIdentity
from tests.support.hospital import Hospital


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    authority.init(tmp_path / "ca")
    return tmp_path / "ca"


@pytest.fixture
def home(ca: Path, tmp_path: Path) -> Path:
    directory = tmp_path / "identity"
    keystore.init(directory, "east", "site")
    keystore.install(directory, sign(ca, directory / "request.csr"))
    return directory


def sign(ca: Path, request: Path, days: int = 100) -> Path:
    return authority.sign(
        ca, request, request.parent.parent / "east.pem", days=days, replace=True
    ).path


def test_the_old_key_stays_in_use_until_the_new_one_is_certified(ca: Path, home: Path) -> None:
    old = keystore.load(home)
    request = keystore.rotate(home)
    assert (request.subject, keystore.load(home)) == (old.subject, old)
    assert request.fingerprint != old.fingerprint
    assert keystore.rotate(home).fingerprint == request.fingerprint, "asked again, the same key"
    assert (home / "next-key.pem").stat().st_mode & 0o777 == 0o600
    installed = keystore.install(home, sign(ca, request.path))
    assert installed.fingerprint == request.fingerprint == keystore.pending(home).fingerprint
    assert keystore.rotation(home) is None
    assert sorted(path.name for path in home.iterdir()) == [
        "ca.pem",
        "certificate.pem",
        "key.pem",
        "request.csr",
    ]


def test_the_old_certificate_can_be_renewed_meanwhile(ca: Path, home: Path) -> None:
    keystore.rotate(home)
    renewed = keystore.install(home, sign(ca, home / "request.csr", days=200))
    assert renewed.fingerprint == keystore.pending(home).fingerprint
    assert keystore.rotation(home) is not None


class CrashError(Exception):
    """The machine stops."""


def test_a_crash_at_any_moment_leaves_a_usable_identity(
    ca: Path, home: Path, monkeypatch: pytest.MonkeyPatch, hospital: Hospital
) -> None:
    """Every write and every rename may be the last one; also if the CA changes at the same time."""
    changes = {name: getattr(keystore, name) for name in ("write_durably", "publish")}
    for round_number, ca_file in enumerate((None, hospital.root_file, None)):
        request = keystore.rotate(home)
        new = request.fingerprint
        if round_number == 0:
            file = sign(ca, request.path)
        else:
            file = hospital.certify(request.path, sans=("east.site.fedelmy",))
        crashed_at, done = 0, False
        while not done:
            crashed_at += 1
            left = crashed_at

            def dying(name: str) -> Any:
                def change(*arguments: Any) -> None:
                    nonlocal left
                    left -= 1
                    if left == 0:
                        raise CrashError
                    changes[name](*arguments)

                return change

            old = keystore.load(home).fingerprint
            with monkeypatch.context() as patch:
                for name in changes:
                    patch.setattr(keystore, name, dying(name))
                try:
                    keystore.install(home, file, ca_file)
                    done = True
                except CrashError:
                    pass
            assert keystore.load(home).fingerprint in (old, new)
            assert LiveIdentity(home)().fingerprint in (old, new)
        assert crashed_at > 3, "the crashes happened"
        assert keystore.load(home).fingerprint == new
        assert keystore.rotation(home) is None


def test_a_live_identity_takes_up_the_new_key(
    ca: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live = LiveIdentity(home)
    request = keystore.rotate(home)
    assert live().fingerprint != request.fingerprint
    keystore.install(home, sign(ca, request.path))
    with caplog.at_level(logging.ERROR):
        assert live().fingerprint == request.fingerprint
    assert caplog.text == ""


def test_a_live_identity_takes_up_a_list_that_revokes_itself(
    ca: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The list counts although our own certificate is worth nothing any more: judging others must
    go on.
    """
    live = LiveIdentity(home)
    assert live().trust.lists == ()
    with caplog.at_level(logging.INFO):
        assert (
            live.install_lists(authority.revoke(ca, "east").path.read_bytes(), "operator alice")
            == 1
        )
    assert live().trust.lists[0].number == 1
    assert "E-IDENTITY-REVOKED" in caplog.text and "operator alice" in caplog.text
    (warning,) = live().warnings()  # what `health` shows
    assert warning.startswith("peers refuse this site: E-IDENTITY-REVOKED")
    with pytest.raises(IdentityError, match="E-IDENTITY-REVOKED"):
        LiveIdentity(home)


def test_a_revoked_site_comes_back_with_a_new_key(ca: Path, home: Path) -> None:
    live = LiveIdentity(home)
    live.install_lists(authority.revoke(ca, "east", reason="key-compromise").path.read_bytes(), "x")
    request = keystore.rotate(home)
    assert keystore.install(home, sign(ca, request.path)).fingerprint == request.fingerprint
    assert live().fingerprint == LiveIdentity(home)().fingerprint == request.fingerprint


def test_an_older_list_is_no_error_over_the_wire(ca: Path, home: Path) -> None:
    live = LiveIdentity(home)
    first = authority.revoke(ca, "operator", role="operator").path.read_bytes()
    second = authority.revoke(ca, "east").path.read_bytes()
    assert live.install_lists(second, "x") == 2
    assert live.install_lists(first, "x") == 2
    assert live().trust.lists[0].number == 2


def test_a_damaged_list_leaves_the_old_one_in_force(
    ca: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live = LiveIdentity(home)
    live.install_lists(authority.revoke(ca, "operator", role="operator").path.read_bytes(), "x")
    (home / "revoked.pem").write_bytes(b"garbage")
    assert live().trust.lists[0].number == 1
    assert "E-IDENTITY-FILE" in caplog.text


def test_expiry_is_logged_once_a_day(
    ca: Path, home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    keystore.install(home, sign(ca, home / "request.csr", days=12))
    live, now = LiveIdentity(home), 1000.0
    monkeypatch.setattr("fedelmy_node.identity.live_identity.time.monotonic", lambda: now)
    for _ in range(3):
        live()
    assert caplog.text.count("expires in 12 days") == 1
    now += 86_401
    live()
    assert caplog.text.count("expires in 12 days") == 2


def test_another_ca_must_be_named(ca: Path, home: Path, hospital: Hospital) -> None:
    old = keystore.load(home)
    file = hospital.certify(home / "request.csr", sans=("fl.east.example",))
    with pytest.raises(IdentityError, match="E-IDENTITY-UNTRUSTED"):
        keystore.install(home, file)
    assert keystore.load(home) == old
    moved = keystore.install(home, file, hospital.root_file)
    assert moved.subject == old.subject
    assert moved.ca_pem == hospital.root_file.read_bytes()
    assert moved.certificate_pem == file.read_bytes(), "leaf and intermediate"
