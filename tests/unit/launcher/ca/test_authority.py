"""The CA: what it signs, what it refuses, and what it remembers."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from fedelmy_launcher.ca import authority
from fedelmy_launcher.cli.ca import ca as ca_command
from fedelmy_node.cli.identity import identity as identity_command
from fedelmy_node.domain.errors import ConfigError, FedelmyError, IdentityError
from fedelmy_node.identity import keystore


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    authority.init(tmp_path / "ca", "alice")
    return tmp_path / "ca"


def request_of(directory: Path, name: str = "north", role: authority.Role = "site") -> Path:
    keystore.init(directory, name, role)
    return directory / "request.csr"


def test_init_makes_a_ca_and_its_operator(ca: Path) -> None:
    assert ca.stat().st_mode & 0o777 == 0o700
    assert (ca / "ca.key").stat().st_mode & 0o777 == 0o600
    alice = keystore.load(ca / "operator")
    assert str(alice.subject) == "operator/alice"
    certificate = x509.load_pem_x509_certificate((ca / "ca.pem").read_bytes())
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert usage.key_cert_sign and not usage.digital_signature
    assert constraints.critical and constraints.value.ca and constraints.value.path_length == 0


def test_init_never_overwrites(ca: Path) -> None:
    key = (ca / "ca.key").read_bytes()
    with pytest.raises(IdentityError, match="E-IDENTITY-EXISTS"):
        authority.init(ca)
    assert (ca / "ca.key").read_bytes() == key


def test_a_failed_init_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError):
        authority.init(tmp_path / "ca", "Not A Name")
    with monkeypatch.context() as patch:
        patch.setattr(keystore, "install", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            authority.init(tmp_path / "ca")
    assert list(tmp_path.iterdir()) == []
    authority.init(tmp_path / "ca")


def test_a_leaf_is_what_tls_needs(ca: Path, tmp_path: Path) -> None:
    signed = authority.sign(ca, request_of(tmp_path / "north"), tmp_path / "north.pem", days=7)
    leaf, issuer = x509.load_pem_x509_certificates(signed.path.read_bytes())
    assert issuer == x509.load_pem_x509_certificate((ca / "ca.pem").read_bytes())
    extensions = leaf.extensions
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert extensions.get_extension_for_class(x509.KeyUsage).value.digital_signature
    assert not extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["north.site.fedelmy"]
    age = datetime.now(UTC) - leaf.not_valid_before_utc
    assert timedelta(minutes=4) < age < timedelta(minutes=10), "slow clocks are forgiven"
    assert timedelta(days=6) < signed.not_after - datetime.now(UTC) <= timedelta(days=7)


def test_a_leaf_does_not_outlive_its_ca(ca: Path, tmp_path: Path) -> None:
    signed = authority.sign(ca, request_of(tmp_path / "north"), tmp_path / "north.pem", days=36_500)
    certificate = x509.load_pem_x509_certificate((ca / "ca.pem").read_bytes())
    assert signed.not_after == certificate.not_valid_after_utc


def test_a_name_keeps_its_key_unless_replaced(ca: Path, tmp_path: Path) -> None:
    first, second = request_of(tmp_path / "first"), request_of(tmp_path / "second")
    out = tmp_path / "north.pem"
    serials = set()
    for _ in range(2):  # a renewal of the same key needs no leave
        authority.sign(ca, first, out)
        serials.add(x509.load_pem_x509_certificates(out.read_bytes())[0].serial_number)
    with pytest.raises(IdentityError, match="E-IDENTITY-EXISTS"):
        authority.sign(ca, second, out)
    authority.sign(ca, second, out, replace=True)
    with pytest.raises(IdentityError, match="E-IDENTITY-EXISTS"):
        authority.sign(ca, first, out)
    assert len(serials) == 2
    assert [line.name for line in authority.issued(ca)] == ["alice", "north", "north", "north"]


def test_the_ca_decides_about_roles(ca: Path, tmp_path: Path) -> None:
    asks_too_much = request_of(tmp_path / "mallory", "mallory", "operator")
    with pytest.raises(IdentityError, match="E-IDENTITY-ROLE"):
        authority.sign(ca, asks_too_much, tmp_path / "out.pem")
    with pytest.raises(IdentityError, match="E-IDENTITY-ROLE"):
        authority.sign(ca, request_of(tmp_path / "north"), tmp_path / "out.pem", role="operator")
    assert not (tmp_path / "out.pem").exists()
    assert len(authority.issued(ca)) == 1


def csr(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, *names: str) -> bytes:
    builder = x509.CertificateSigningRequestBuilder(subject_name=x509.Name([]))
    builder = builder.add_extension(
        x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_other_requests_are_refused(ca: Path, tmp_path: Path) -> None:
    p256, p384 = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP384R1())
    damaged = bytearray(
        x509.load_pem_x509_csr(csr(p256, "north.site.fedelmy")).public_bytes(
            serialization.Encoding.DER
        )
    )
    damaged[-1] ^= 1
    broken = x509.load_der_x509_csr(bytes(damaged)).public_bytes(serialization.Encoding.PEM)
    requests = {
        "empty": b"",
        "another curve": csr(p384, "north.site.fedelmy"),
        "RSA": csr(rsa.generate_private_key(65537, 2048), "north.site.fedelmy"),
        "two names": csr(p256, "north.site.fedelmy", "south.site.fedelmy"),
        "a bad name": csr(p256, "North.site.fedelmy"),
        "a damaged signature": broken,
    }
    for case, content in requests.items():
        path = tmp_path / "request.csr"
        path.write_bytes(content)
        with pytest.raises(IdentityError, match="E-IDENTITY-FILE"):
            authority.sign(ca, path, tmp_path / "out.pem")
        assert not (tmp_path / "out.pem").exists(), case


def test_a_missing_or_damaged_ca_is_named(ca: Path, tmp_path: Path) -> None:
    request = request_of(tmp_path / "north")
    with pytest.raises(IdentityError, match="E-IDENTITY-MISSING") as raised:
        authority.sign(tmp_path / "nowhere", request, tmp_path / "out.pem")
    assert "ca init" in raised.value.hint
    with (ca / "issued.jsonl").open("a") as register:
        register.write('{"name": "no')
    with pytest.raises(IdentityError, match=r"E-IDENTITY-FILE.*line 2"):
        authority.sign(ca, request, tmp_path / "out.pem")


def invoke(command: object, *arguments: str | Path) -> str:
    result = CliRunner().invoke(
        command, [str(argument) for argument in arguments], catch_exceptions=False
    )  # type: ignore[arg-type]
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_three_commands_of_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = ["--state", tmp_path / "state"]
    invoke(ca_command, "init")
    made = invoke(identity_command, "init", "--site", "north", *state, "--out", "north.csr")
    shown = json.loads(invoke(identity_command, "show", "--json", *state))
    assert shown["fingerprint"] in made and shown["not_after"] is None
    signed = json.loads(invoke(ca_command, "sign", "north.csr", "--yes", "--json"))
    assert signed["fingerprint"] == shown["fingerprint"]
    assert "fedelmy-node serve" in invoke(identity_command, "install", signed["path"], *state)
    shown = json.loads(invoke(identity_command, "show", "--json", *state))
    assert shown["not_after"] == signed["not_after"]


def test_a_second_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    invoke(ca_command, "init")
    invoke(identity_command, "init", "--operator", "bob", "--state", "bob", "--out", "bob.csr")
    with pytest.raises(FedelmyError, match="E-IDENTITY-ROLE"):
        invoke(ca_command, "sign", "bob.csr", "--yes")
    invoke(ca_command, "sign", "bob.csr", "--yes", "--operator")
    assert "operator/bob" in invoke(
        identity_command, "install", "bob.operator.pem", "--state", "bob"
    )


def test_signing_asks_unless_told(ca: Path, tmp_path: Path) -> None:
    request = request_of(tmp_path / "north")
    with pytest.raises(
        FedelmyError, match=keystore.pending(tmp_path / "north").fingerprint
    ) as raised:
        invoke(ca_command, "sign", request, "--dir", ca, "--out", tmp_path / "out.pem")
    assert "--yes" in raised.value.hint
    assert not (tmp_path / "out.pem").exists()


# --- revocation
# ---------------------------------------------------------------------------------------------------


def certify(ca: Path, home: Path, **options: object) -> None:
    request_of(home)
    authority.sign(ca, home / "request.csr", home / "signed.pem", **options)  # type: ignore[arg-type]


def test_a_list_is_a_standard_crl_that_grows(ca: Path, tmp_path: Path) -> None:
    certify(ca, tmp_path / "north")
    first = authority.revoke(ca, "north", reason="key-compromise")
    crl = x509.load_pem_x509_crl(first.path.read_bytes())
    authority_key = x509.load_pem_x509_certificate((ca / "ca.pem").read_bytes()).public_key()
    assert crl.is_signature_valid(authority_key)  # type: ignore[arg-type]
    (entry,) = crl
    assert f"{entry.serial_number:x}" == first.serials[0]
    assert (
        entry.extensions.get_extension_for_class(x509.CRLReason).value.reason
        == x509.ReasonFlags.key_compromise
    )
    second = authority.revoke(ca, "alice", role="operator")
    crl = x509.load_pem_x509_crl(second.path.read_bytes())
    assert (first.number, second.number, len(crl)) == (1, 2, 2)
    assert crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 2
    assert (ca / "operator" / "revoked.pem").read_bytes() == (ca / "revoked.pem").read_bytes()


def test_only_what_is_valid_can_be_revoked(ca: Path, tmp_path: Path) -> None:
    for name, role in (("nobody", "site"), ("operator", "site")):
        with pytest.raises(FedelmyError, match=r"E-IDENTITY-MISSING.*no valid certificate"):
            authority.revoke(ca, name, role=role)  # type: ignore[arg-type]
    certify(ca, tmp_path / "north")
    for serial in ("1234", "ffffffffffff", ""):
        with pytest.raises(FedelmyError, match=r"E-IDENTITY-MISSING.*serial number"):
            authority.revoke(ca, "north", serials=[serial])
    assert not (ca / "revoked.pem").exists()
    authority.revoke(ca, "north")
    with pytest.raises(FedelmyError, match="E-IDENTITY-MISSING"):
        authority.revoke(ca, "north")


def test_one_certificate_of_a_name_can_be_revoked(ca: Path, tmp_path: Path) -> None:
    """After a rotation, the old one."""
    certify(ca, tmp_path / "old")
    certify(ca, tmp_path / "new", replace=True)
    old, new = (line for line in authority.issued(ca) if line.name == "north")
    revoked = authority.revoke(ca, "north", serials=[old.serial[:8].upper()], reason="superseded")
    assert revoked.serials == (old.serial,)
    states = {each.issued.serial: (each.state, each.reason) for each in authority.certified(ca)}
    assert states[old.serial] == ("revoked", "superseded") and states[new.serial] == ("valid", None)


def test_an_old_key_goes_with_all_its_certificates(
    ca: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been renewed: then one serial number would not be enough. `sign` says what to
    type.
    """
    monkeypatch.chdir(tmp_path)
    certify(ca, tmp_path / "old")
    authority.sign(ca, tmp_path / "old" / "request.csr", tmp_path / "renewed.pem")
    new = request_of(tmp_path / "new")
    old = keystore.pending(tmp_path / "old").fingerprint
    said = invoke(ca_command, "sign", new, "--dir", ca, "--replace", "--yes")
    command = f"ca revoke north --key {old} --reason superseded --dir {ca}"
    assert f"`fedelmy-launch {command}`" in said
    invoke(ca_command, *command.split()[1:])
    assert [e.state for e in authority.certified(ca) if e.issued.name == "north"] == [
        "revoked",
        "revoked",
        "valid",
    ]
    assert "stays valid" not in invoke(ca_command, "sign", new, "--dir", ca, "--yes")
    with pytest.raises(FedelmyError, match=r"E-IDENTITY-MISSING.*fingerprint"):
        authority.revoke(ca, "north", keys=[old])


def test_a_revoked_key_is_not_certified_again(ca: Path, tmp_path: Path) -> None:
    certify(ca, tmp_path / "north")
    authority.revoke(ca, "north")
    with pytest.raises(FedelmyError, match="E-IDENTITY-REVOKED"):
        authority.sign(ca, tmp_path / "north" / "request.csr", tmp_path / "again.pem", replace=True)
    certify(ca, tmp_path / "newer", replace=True)


def test_the_list_of_everything_signed(ca: Path, tmp_path: Path) -> None:
    certify(ca, tmp_path / "north", days=12)
    shown = invoke(ca_command, "list", "--dir", ca)
    assert "site/north" in shown and "expires in 12 days" in shown
    assert keystore.pending(tmp_path / "north").fingerprint in shown
    invoke(ca_command, "revoke", "north", "--dir", ca, "--reason", "key-compromise")
    assert "revoked on" in invoke(ca_command, "list", "--dir", ca)
    operator, north = json.loads(invoke(ca_command, "list", "--json", "--dir", ca))["certificates"]
    assert (operator["state"], north["state"], north["reason"]) == (
        "valid",
        "revoked",
        "key-compromise",
    )


def test_a_site_takes_a_list_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = ("--state", "north")
    invoke(ca_command, "init")
    invoke(identity_command, "init", "--site", "north", *state, "--out", "north.csr")
    invoke(ca_command, "sign", "north.csr", "--yes")
    invoke(identity_command, "install", "north.site.pem", *state)
    assert "list 1" in invoke(ca_command, "revoke", "operator", "--operator")
    assert "list 1" in invoke(identity_command, "install", "federation-ca/revoked.pem", *state)
    assert "list 1" in invoke(identity_command, "show", *state)
    assert json.loads(invoke(identity_command, "show", "--json", *state))["lists"] == [1]


def test_who_was_revoked_still_sees_who_he_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And which new key waits: the administrator is in the middle of getting out of it."""
    monkeypatch.chdir(tmp_path)
    state = ("--state", "north")
    invoke(ca_command, "init")
    invoke(identity_command, "init", "--site", "north", *state, "--out", "north.csr")
    invoke(ca_command, "sign", "north.csr", "--yes")
    assert "Next: check" in invoke(identity_command, "install", "north.site.pem", *state)
    assert "from now on" in invoke(identity_command, "install", "north.site.pem", *state)
    invoke(ca_command, "revoke", "north")
    invoke(identity_command, "install", "federation-ca/revoked.pem", *state)
    rotated = json.loads(invoke(identity_command, "rotate", "--json", *state))
    shown = CliRunner().invoke(identity_command, ["show", *state])
    assert "site/north" in shown.output and rotated["fingerprint"] in shown.output
    assert (
        isinstance(shown.exception, IdentityError) and shown.exception.code == "E-IDENTITY-REVOKED"
    )


def test_the_commands_of_a_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = ("--state", "north")
    invoke(ca_command, "init")
    invoke(identity_command, "init", "--site", "north", *state, "--out", "north.csr")
    invoke(ca_command, "sign", "north.csr", "--yes", "--days", "12")
    invoke(identity_command, "install", "north.site.pem", *state)
    assert "expires in 12 days" in invoke(identity_command, "show", *state)
    rotated = json.loads(
        invoke(identity_command, "rotate", "--out", "north-2.csr", "--json", *state)
    )
    assert rotated["fingerprint"] in invoke(identity_command, "show", *state)
    with pytest.raises(FedelmyError, match=r"E-IDENTITY-EXISTS.*another key"):
        invoke(ca_command, "sign", "north-2.csr", "--yes")
    invoke(ca_command, "sign", "north-2.csr", "--yes", "--replace")
    invoke(identity_command, "install", "north.site.pem", *state)
    shown = json.loads(invoke(identity_command, "show", "--json", *state))
    assert (shown["fingerprint"], shown["rotation"], shown["warnings"]) == (
        rotated["fingerprint"],
        None,
        [],
    )


def test_the_operators_own_certificate_is_renewed_and_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    home = ("--identity", "federation-ca/operator")
    invoke(ca_command, "init")
    before = json.loads(invoke(identity_command, "show", "--json", *home))
    assert "--identity federation-ca/operator" in invoke(
        identity_command, "rotate", "--out", "operator.csr", *home
    )
    invoke(ca_command, "sign", "operator.csr", "--yes", "--operator", "--replace", "--days", "40")
    invoke(identity_command, "install", "operator.operator.pem", *home)
    after = json.loads(invoke(identity_command, "show", "--json", *home))
    assert after["fingerprint"] != before["fingerprint"] and after["role"] == "operator"
