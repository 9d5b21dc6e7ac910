"""The federation's own certificate authority: a key, a certificate and a register in one directory.

    ca.key         signs everything; mode 0600; whoever has it can name himself any site
    ca.pem         what every site trusts
    issued.jsonl   every certificate that was ever signed, one line each, written before it is handed out
    operator/      the identity of the operator who made the CA

The CA decides about names and roles; a request only asks.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedelmy_node.config.decode import canonical_json, decode
from fedelmy_node.durable import write_durably
from fedelmy_node.errors import ConfigError, IdentityError, StoreError
from fedelmy_node.identity import keystore
from fedelmy_node.identity.certificates import (
    KEY_USAGES,
    Role,
    Subject,
    check_authority,
    check_dates,
    fingerprint,
    parse_certificates,
    public_key,
    to_pem,
)
from fedelmy_node.identity.files import make_directory, read_file
from fedelmy_node.identity.requests import Request, common_name, read_request

__all__ = ["Signed", "Issued", "init", "sign", "read_request", "issued", "LEAF_DAYS"]

LEAF_DAYS: Final = 825
"""Long enough for a study, short enough that renewal stays a habit; other TLS stacks accept no more."""
_CA_DAYS: Final = 3653
"""Ten years: replacing the CA means visiting every site, and it should outlive the federation."""
_SKEW: Final = timedelta(minutes=5)
"""Certificates begin in the past, for sites whose clocks are slow."""

_KEY: Final = "ca.key"
_CERTIFICATE: Final = "ca.pem"
_REGISTER: Final = "issued.jsonl"
_OPERATOR: Final = "operator"


@dataclass(frozen=True, kw_only=True, slots=True)
class Signed:
    """What `sign` handed out."""

    subject: Subject
    fingerprint: str
    """Of the key, as it was compared with the site."""
    path: Path
    """The one file to send back: the certificate, then the CA's."""
    not_after: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Issued:
    """One line of the register."""

    name: str
    role: str
    key: str
    """SHA-256 of the public key."""
    serial: str
    """Of the certificate, in hexadecimal."""
    not_after: str
    at: str
    """When it was signed."""


def init(directory: Path, operator: str = "operator") -> Signed:
    """Found a federation: its CA, and the identity of the operator who runs it. A CA is never overwritten."""
    Subject.of(operator, "operator")  # a bad name is refused before anything is made
    if directory.exists() and any(directory.iterdir()):
        raise IdentityError(
            "E-IDENTITY-EXISTS",
            f"{directory} exists already and is not empty",
            hint="Use the CA that is there, or choose another directory with --dir.",
        )
    # Made aside and renamed when it is whole: an `init` that was cut short can simply be repeated.
    make_directory(directory.parent, private=False)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as aside:
        made = Path(aside) / "ca"
        signed = _found(made, operator)
        try:
            made.rename(directory)
        except OSError as error:
            raise StoreError("E-STORE-UNWRITABLE", f"{directory} cannot be made: {error.strerror}") from error
    return dataclasses.replace(signed, path=directory / _OPERATOR / signed.path.name)


def _found(directory: Path, operator: str) -> Signed:
    make_directory(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    write_durably(directory / _CERTIFICATE, to_pem(_self_signed(key)), 0o644)
    write_durably(directory / _KEY, keystore.encode_key(key), 0o600)
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
    """Certify the key of a request, after its fingerprint was compared with whoever sent it.

    `replace` allows a new key for a name that has a certificate; the old one stays valid until it expires.
    """
    key, ca = _load(directory)
    if days < 1:
        raise ConfigError("E-CONFIG-VALUE", f"a certificate cannot be valid for {days} days")
    request = read_request(request_file)
    if request.subject.role != role:
        raise IdentityError(
            "E-IDENTITY-ROLE",
            f"{request_file} asks for role {request.subject.role}, but role {role} was to be given",
            hint="Add --operator only if its sender is to control runs; otherwise have a new request made.",
        )
    with _register(directory) as register:
        _refuse_other_key(register, request, replace)
        leaf = _leaf(request, key, ca, days)
        register.append(leaf, request)
    write_durably(out, to_pem(leaf) + to_pem(ca), 0o644)
    return Signed(
        subject=request.subject,
        fingerprint=request.fingerprint,
        path=out,
        not_after=leaf.not_valid_after_utc,
    )


def issued(directory: Path) -> tuple[Issued, ...]:
    """Everything this CA ever signed, oldest first."""
    _load(directory)
    with _register(directory) as register:
        return tuple(register.lines)


def _load(directory: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    if not (directory / _KEY).exists():
        raise IdentityError(
            "E-IDENTITY-MISSING",
            f"there is no CA in {directory}",
            hint="Run `fedelmy-launch ca init`, or name the directory of the CA with --dir.",
        )
    key = keystore.read_key(directory / _KEY)
    ca = parse_certificates(read_file(directory / _CERTIFICATE), str(directory / _CERTIFICATE))[0]
    check_authority(ca)
    check_dates(ca, "the federation's CA")
    if public_key(ca) != key.public_key():
        raise IdentityError("E-IDENTITY-MISMATCH", f"{_KEY} and {_CERTIFICATE} in {directory} do not belong together")
    return key, ca


def _self_signed(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    # The fingerprint in the name lets TLS tell two federations' CAs apart before it compares signatures.
    name = common_name(f"FedELMY CA {fingerprint(key.public_key())}")
    builder = _certificate(name, name, key.public_key(), _CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    return builder.sign(key, hashes.SHA256())


def _leaf(request: Request, ca_key: ec.EllipticCurvePrivateKey, ca: x509.Certificate, days: int) -> x509.Certificate:
    name = request.subject.dns_name
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    builder = _certificate(common_name(name), ca.subject, request.key, days, latest=ca.not_valid_after_utc)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(KEY_USAGES), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
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
    builder = builder.not_valid_before(now - _SKEW).not_valid_after(min(end, latest) if latest else end)
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


def _refuse_other_key(register: _Register, request: Request, replace: bool) -> None:
    same_name = [
        line for line in register.lines if (line.name, line.role) == (request.subject.name, request.subject.role)
    ]
    if same_name and same_name[-1].key != request.full_fingerprint and not replace:
        raise IdentityError(
            "E-IDENTITY-EXISTS",
            f"{request.subject} has a certificate for another key, signed on {same_name[-1].at[:10]}",
            hint="Ask the site whether it made a new key; if it did, sign again with --replace.",
        )


class _Register:
    """The lines of issued.jsonl, and how another one is added."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        with os.fdopen(os.dup(descriptor), "rb") as file:
            self.lines = [self._parse(number, line) for number, line in enumerate(file, 1)]

    def _parse(self, number: int, line: bytes) -> Issued:
        try:
            value: Any = json.loads(line)
            return decode(Issued, value)
        except (ValueError, ConfigError) as error:
            raise IdentityError("E-IDENTITY-FILE", f"line {number} of {self._path} is damaged") from error

    def append(self, leaf: x509.Certificate, request: Request) -> None:
        line = Issued(
            name=request.subject.name,
            role=request.subject.role,
            key=request.full_fingerprint,
            serial=f"{leaf.serial_number:x}",
            not_after=leaf.not_valid_after_utc.isoformat(),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        os.write(self._descriptor, canonical_json(line) + b"\n")
        os.fsync(self._descriptor)


@contextmanager
def _register(directory: Path) -> Iterator[_Register]:
    """The register, locked: two `sign` at once must not both find a name free."""
    path = directory / _REGISTER
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError("E-STORE-UNWRITABLE", f"{path} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield _Register(descriptor, path)
    finally:
        os.close(descriptor)
