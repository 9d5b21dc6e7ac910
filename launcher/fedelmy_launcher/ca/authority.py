"""The federation's certificate authority: a key, a certificate and a register in one directory.

    ca.key         signs everything; mode 0600; its holder can certify anyone as any site
    ca.pem         the certificate that every site trusts
    issued.jsonl   every certificate ever signed, one line each, written before it is handed out
    revoked.pem    the revocation list, an X.509 CRL for every site; absent until first needed
    operator/      the identity of the operator who created the CA

Names and roles are the CA's decision; a request only asks for them.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedelmy_launcher.ca.register import LIST, Certified, Issued, Register, open_register
from fedelmy_launcher.ca.validity import LEAF_DAYS
from fedelmy_node.domain.errors import ConfigError, IdentityError, StoreError
from fedelmy_node.domain.subject import Role, Subject
from fedelmy_node.identity import keystore
from fedelmy_node.identity.certificates import (
    KEY_USAGES,
    check_authority,
    check_dates,
    fingerprint,
    parse_certificates,
    public_key,
    to_pem,
)
from fedelmy_node.identity.keys import encode_key, make_directory, read_file, read_key
from fedelmy_node.identity.requests import Request, common_name, read_request
from fedelmy_node.store.durable_files import write_durably

_CA_DAYS: Final = 3653
"""Ten years: replacing the CA means visiting every site, so it should outlive the federation."""
_SKEW: Final = timedelta(minutes=5)
"""Certificates start in the past, for sites whose clocks are slow."""

_KEY: Final = "ca.key"
_CERTIFICATE: Final = "ca.pem"
_OPERATOR: Final = "operator"
_SERIAL_DIGITS: Final = 8
"""The minimum length of an abbreviated serial number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Signed:
    """The result of `sign`."""

    subject: Subject
    fingerprint: str
    """The key's fingerprint, as compared with the site."""
    path: Path
    """The file to send back: the certificate, then the CA's."""
    not_after: datetime
    old_keys: tuple[str, ...] = ()
    """Fingerprints of other keys of this name whose certificates are still valid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Revoked:
    """The result of `revoke`."""

    subject: Subject
    serials: tuple[str, ...]
    """The revoked certificates, in hexadecimal."""
    number: int
    """The number of the new revocation list."""
    path: Path
    """The revocation list, for every site."""


def init(directory: Path, operator: str = "operator") -> Signed:
    """Create a CA and its operator's identity; never overwrites an existing CA."""
    Subject.of(operator, "operator")  # refuse a bad name before anything is created
    if directory.exists() and any(directory.iterdir()):
        hint = "Use the existing CA, or choose another directory with --dir."
        message = f"{directory} exists already and is not empty"
        raise IdentityError("E-IDENTITY-EXISTS", message, hint=hint)
    # Created aside and renamed when complete, so an interrupted `init` can simply be repeated.
    make_directory(directory.parent, private=False)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as aside:
        signed = _create(Path(aside) / "ca", operator)
        try:
            (Path(aside) / "ca").rename(directory)
        except OSError as error:
            message = f"cannot create {directory}: {error.strerror}"
            raise StoreError("E-STORE-UNWRITABLE", message) from error
    return dataclasses.replace(signed, path=directory / _OPERATOR / signed.path.name)


def _create(directory: Path, operator: str) -> Signed:
    make_directory(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    write_durably(directory / _CERTIFICATE, to_pem(_self_signed(key)), 0o644)
    write_durably(directory / _KEY, encode_key(key), 0o600)
    home = directory / _OPERATOR
    keystore.init(home, operator, "operator")
    signed = sign(directory, home / "request.csr", home / "signed.pem", role="operator")
    keystore.install(home, signed.path)
    return signed


def sign(
    directory: Path,
    request_file: Path,
    out: Path,
    *,
    days: int = LEAF_DAYS,
    role: Role = "site",
    replace: bool = False,
) -> Signed:
    """Certify the key of a request whose fingerprint was compared with its sender.

    `replace` allows a new key for a name that already has a certificate; the old certificate stays
    valid until it expires or is revoked.
    """
    key, ca = _load(directory)
    if days < 1:
        raise ConfigError("E-CONFIG-VALUE", f"a certificate cannot be valid for {days} days")
    request = read_request(request_file)
    if request.subject.role != role:
        message = f"{request_file} requests role {request.subject.role}, not {role}"
        hint = "Use --operator only for someone who controls runs; otherwise ask for a new request."
        raise IdentityError("E-IDENTITY-ROLE", message, hint=hint)
    with open_register(directory) as register:
        _refuse_revoked_key(register, request)
        _refuse_other_key(register, request, replace)
        valid = _valid(request.subject, register.certified())
        leaf = _leaf(request, key, ca, days)
        register.append(leaf, request)
    others = (e.fingerprint for e in valid if e.issued.key != request.full_fingerprint)
    write_durably(out, to_pem(leaf) + to_pem(ca), 0o644)
    return Signed(
        subject=request.subject,
        fingerprint=request.fingerprint,
        path=out,
        not_after=leaf.not_valid_after_utc,
        old_keys=tuple(dict.fromkeys(others)),
    )


def issued(directory: Path) -> tuple[Issued, ...]:
    """All certificates this CA ever signed, oldest first."""
    _load(directory)
    with open_register(directory) as register:
        return tuple(register.lines)


def certified(directory: Path) -> tuple[Certified, ...]:
    """All certificates this CA ever signed, with their current state."""
    _load(directory)
    with open_register(directory) as register:
        return register.certified()


def revoke(
    directory: Path,
    name: str,
    *,
    role: Role = "site",
    keys: Sequence[str] = (),
    serials: Sequence[str] = (),
    reason: str = "unspecified",
) -> Revoked:
    """Revoke certificates of a name and rewrite the revocation list.

    All valid ones, or only those with these key fingerprints and serial numbers.
    """
    key, ca = _load(directory)
    subject = Subject.of(name, role)
    with open_register(directory) as register:
        chosen = _chosen(subject, register.certified(), keys, serials)
        before, now = register.revocations, datetime.now(UTC)
        number = before.number + 1 if before else 1
        # Lists are distributed by hand, so they do not expire; a newer one replaces an older.
        builder = x509.CertificateRevocationListBuilder(ca.subject, now, ca.not_valid_after_utc)
        for entry in before.crl if before else ():
            builder = builder.add_revoked_certificate(entry)
        for line in chosen:
            revoked = x509.RevokedCertificateBuilder(int(line.serial, 16), now)
            if reason != "unspecified":  # X.509 wants the extension omitted then
                flag = x509.ReasonFlags[reason.replace("-", "_")]
                revoked = revoked.add_extension(x509.CRLReason(flag), critical=False)
            builder = builder.add_revoked_certificate(revoked.build())
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
        builder = builder.add_extension(authority, critical=False)
        builder = builder.add_extension(x509.CRLNumber(number), critical=False)
        pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        write_durably(directory / LIST, pem, 0o644)
        operator = directory / _OPERATOR
        if operator.is_dir():  # it may have moved to the machine that runs the launcher
            write_durably(operator / LIST, pem, 0o644)
    serials = tuple(line.serial for line in chosen)
    return Revoked(subject=subject, serials=serials, number=number, path=directory / LIST)


def _load(directory: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    if not (directory / _KEY).exists():
        hint = "Run `fedelmy-launch ca init`, or name the directory of the CA with --dir."
        raise IdentityError("E-IDENTITY-MISSING", f"there is no CA in {directory}", hint=hint)
    key = read_key(directory / _KEY)
    ca = parse_certificates(read_file(directory / _CERTIFICATE), str(directory / _CERTIFICATE))[0]
    check_authority(ca)
    check_dates(ca, "the federation's CA")
    if public_key(ca) != key.public_key():
        message = f"{_KEY} and {_CERTIFICATE} in {directory} do not match"
        raise IdentityError("E-IDENTITY-MISMATCH", message)
    return key, ca


def _self_signed(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    # The fingerprint in the name lets TLS tell two CAs apart before it compares signatures.
    name = common_name(f"FedELMY CA {fingerprint(key.public_key())}")
    builder = _certificate(name, name, key.public_key(), _CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    # A root that names its own key is known as one, even if its issuer's name is damaged.
    own = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    builder = builder.add_extension(own, critical=False)
    return builder.sign(key, hashes.SHA256())


def _leaf(
    request: Request, ca_key: ec.EllipticCurvePrivateKey, ca: x509.Certificate, days: int
) -> x509.Certificate:
    name, end = request.subject.dns_name, ca.not_valid_after_utc
    constraints = x509.BasicConstraints(ca=False, path_length=None)
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    builder = _certificate(common_name(name), ca.subject, request.key, days, latest=end)
    builder = builder.add_extension(constraints, critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(KEY_USAGES), critical=False)
    builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(authority, critical=False)
    return builder.sign(ca_key, hashes.SHA256())


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: int,
    latest: datetime | None = None,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - _SKEW).not_valid_after(min(end, latest or end))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _valid(subject: Subject, known: Sequence[Certified]) -> list[Certified]:
    """The valid certificates of a name and role."""
    own = (subject.name, subject.role)
    return [e for e in known if (e.issued.name, e.issued.role) == own and e.state == "valid"]


def _chosen(
    subject: Subject, known: Sequence[Certified], keys: Sequence[str], serials: Sequence[str]
) -> list[Issued]:
    """The certificates to revoke; refuses keys without one, and ambiguous serial numbers."""
    own = _valid(subject, known)
    hint = "`fedelmy-launch ca list` shows all certificates and their states."
    if not own:
        message = f"{subject} has no valid certificate of this CA"
        raise IdentityError("E-IDENTITY-MISSING", message, hint=hint)
    if not keys and not serials:
        return [each.issued for each in own]
    chosen: list[Issued] = []
    for key in keys:
        found = [each.issued for each in own if each.fingerprint == key.strip().upper()]
        if not found:
            message = f"{subject} has no valid certificate for a key with the fingerprint {key!r}"
            raise IdentityError("E-IDENTITY-MISSING", message, hint=hint)
        chosen += [line for line in found if line not in chosen]
    for serial in serials:
        digits = serial.lower().replace(":", "").removeprefix("0x").lstrip("0")
        found = [each.issued for each in own if each.issued.serial.startswith(digits)]
        if len(digits) < _SERIAL_DIGITS or len(found) != 1:
            message = f"serial number {serial!r} does not identify exactly one valid certificate of {subject}"
            hint = f"{hint} Give {_SERIAL_DIGITS} digits or more."
            raise IdentityError("E-IDENTITY-MISSING", message, hint=hint)
        chosen += [line for line in found if line not in chosen]
    return chosen


def _refuse_revoked_key(register: Register, request: Request) -> None:
    """Refuse a key that may be compromised: a new certificate does not make it safe."""
    revoked = [each.issued.key for each in register.certified() if each.state == "revoked"]
    if request.full_fingerprint in revoked:
        message = f"a certificate for this key of {request.subject} was revoked"
        raise IdentityError("E-IDENTITY-REVOKED", message)


def _refuse_other_key(register: Register, request: Request, replace: bool) -> None:
    own = (request.subject.name, request.subject.role)
    same_name = [line for line in register.lines if (line.name, line.role) == own]
    if same_name and same_name[-1].key != request.full_fingerprint and not replace:
        date = same_name[-1].at[:10]
        message = f"{request.subject} has a certificate for another key, signed on {date}"
        hint = "Ask the site whether it created a new key; if so, sign again with --replace."
        raise IdentityError("E-IDENTITY-EXISTS", message, hint=hint)
