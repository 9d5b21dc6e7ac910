"""The federation's own certificate authority: a key, a certificate and a register in one directory.

    ca.key         signs everything; mode 0600; whoever has it can name himself any site
    ca.pem         what every site trusts
    issued.jsonl   every certificate that was ever signed, one line each, written before it is handed out
    revoked.pem    what was revoked: an X.509 CRL, for every site; absent until something was
    operator/      the identity of the operator who made the CA

The CA decides about names and roles; a request only asks.
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

from fedelmy_launcher.books import LIST, Certified, Issued, Register, open_register
from fedelmy_node.durable import write_durably
from fedelmy_node.errors import ConfigError, IdentityError, StoreError
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
from fedelmy_node.identity.files import make_directory, read_file
from fedelmy_node.identity.keys import encode_key, read_key
from fedelmy_node.identity.requests import Request, common_name, read_request
from fedelmy_node.identity.subject import Role, Subject

__all__ = [
    "Signed", "Issued", "Certified", "Revoked", "LEAF_DAYS",
    "init", "sign", "revoke", "read_request", "issued", "certified",
]  # fmt: skip

LEAF_DAYS: Final = 825
"""Long enough for a study, short enough that renewal stays a habit; other TLS stacks accept no more."""
_CA_DAYS: Final = 3653
"""Ten years: replacing the CA means visiting every site, and it should outlive the federation."""
_SKEW: Final = timedelta(minutes=5)
"""Certificates begin in the past, for sites whose clocks are slow."""

_KEY: Final = "ca.key"
_CERTIFICATE: Final = "ca.pem"
_OPERATOR: Final = "operator"
_SERIAL_DIGITS: Final = 8
"""As many digits of a serial number as somebody must type."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Signed:
    """What `sign` handed out."""

    subject: Subject
    fingerprint: str
    """Of the key, as it was compared with the site."""
    path: Path
    """The one file to send back: the certificate, then the CA's."""
    not_after: datetime
    old_keys: tuple[str, ...] = ()
    """Fingerprints of the name's other keys, whose certificates are still valid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Revoked:
    """What `revoke` did."""

    subject: Subject
    serials: tuple[str, ...]
    """Of the certificates that were revoked, in hexadecimal."""
    number: int
    """Of the list."""
    path: Path
    """The list, for every site."""


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
    """Certify the key of a request, after its fingerprint was compared with whoever sent it.

    `replace` allows a new key for a name that has a certificate; the old one stays valid until it expires
    or is revoked.
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
    with open_register(directory) as register:
        _refuse_revoked_key(register, request)
        _refuse_other_key(register, request, replace)
        valid = [each for each in _own(request.subject, register.certified()) if each.state == "valid"]
        leaf = _leaf(request, key, ca, days)
        register.append(leaf, request)
    write_durably(out, to_pem(leaf) + to_pem(ca), 0o644)
    return Signed(
        subject=request.subject,
        fingerprint=request.fingerprint,
        path=out,
        not_after=leaf.not_valid_after_utc,
        old_keys=tuple(dict.fromkeys(e.fingerprint for e in valid if e.issued.key != request.full_fingerprint)),
    )


def issued(directory: Path) -> tuple[Issued, ...]:
    """Everything this CA ever signed, oldest first."""
    _load(directory)
    with open_register(directory) as register:
        return tuple(register.lines)


def certified(directory: Path) -> tuple[Certified, ...]:
    """The same, with what each certificate is worth now."""
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
    """Revoke certificates of a name, and write the list anew.

    All that are valid, or those for the keys with these fingerprints and those with these serial numbers.
    """
    key, ca = _load(directory)
    subject = Subject.of(name, role)
    with open_register(directory) as register:
        chosen = _chosen(subject, register.certified(), keys, serials)
        before, now = register.revocations, datetime.now(UTC)
        number = before.number + 1 if before else 1
        # Sites get lists by hand, so none is ever out of date; a newer one simply replaces it.
        builder = x509.CertificateRevocationListBuilder(ca.subject, now, ca.not_valid_after_utc)
        for entry in before.crl if before else ():
            builder = builder.add_revoked_certificate(entry)
        for line in chosen:
            revoked = x509.RevokedCertificateBuilder(int(line.serial, 16), now)
            if reason != "unspecified":  # then nothing is said, as X.509 wants it
                flag = x509.ReasonFlags[reason.replace("-", "_")]
                revoked = revoked.add_extension(x509.CRLReason(flag), critical=False)
            builder = builder.add_revoked_certificate(revoked.build())
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
        builder = builder.add_extension(authority, critical=False).add_extension(x509.CRLNumber(number), critical=False)
        pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        write_durably(directory / LIST, pem, 0o644)
        if (directory / _OPERATOR).is_dir():  # it may have moved to the machine that runs the launcher
            write_durably(directory / _OPERATOR / LIST, pem, 0o644)
    return Revoked(subject=subject, serials=tuple(line.serial for line in chosen), number=number, path=directory / LIST)


def _load(directory: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    if not (directory / _KEY).exists():
        raise IdentityError(
            "E-IDENTITY-MISSING",
            f"there is no CA in {directory}",
            hint="Run `fedelmy-launch ca init`, or name the directory of the CA with --dir.",
        )
    key = read_key(directory / _KEY)
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


def _own(subject: Subject, known: Sequence[Certified]) -> list[Certified]:
    return [each for each in known if (each.issued.name, each.issued.role) == (subject.name, subject.role)]


def _chosen(subject: Subject, known: Sequence[Certified], keys: Sequence[str], serials: Sequence[str]) -> list[Issued]:
    """What is to be revoked; a key that has nothing, and a serial number that fits not exactly one, are refused."""
    own = [each for each in _own(subject, known) if each.state == "valid"]
    valid = [each.issued for each in own]
    hint = "`fedelmy-launch ca list` shows what was signed, and its state."
    if not valid:
        raise IdentityError("E-IDENTITY-MISSING", f"{subject} has no valid certificate of this CA", hint=hint)
    if not keys and not serials:
        return valid
    chosen: list[Issued] = []
    for key in keys:
        of_key = [each.issued for each in own if each.fingerprint == key.strip().upper()]
        if not of_key:
            message = f"{subject} has no valid certificate for a key with the fingerprint {key!r}"
            raise IdentityError("E-IDENTITY-MISSING", message, hint=hint)
        chosen += [line for line in of_key if line not in chosen]
    for serial in serials:
        digits = serial.lower().replace(":", "").removeprefix("0x").lstrip("0")
        found = [line for line in valid if len(digits) >= _SERIAL_DIGITS and line.serial.startswith(digits)]
        if len(found) != 1:
            raise IdentityError(
                "E-IDENTITY-MISSING", f"{serial!r} is not the serial number of one valid certificate of {subject}",
                hint=f"{hint} Give {_SERIAL_DIGITS} digits or more.",
            )  # fmt: skip
        chosen += [line for line in found if line not in chosen]
    return chosen


def _refuse_revoked_key(register: Register, request: Request) -> None:
    """A key that somebody else may have is not made good by another certificate."""
    revoked = [each for each in register.certified() if each.state == "revoked"]
    if any(each.issued.key == request.full_fingerprint for each in revoked):
        raise IdentityError("E-IDENTITY-REVOKED", f"a certificate for this key of {request.subject} was revoked")


def _refuse_other_key(register: Register, request: Request, replace: bool) -> None:
    same_name = [
        line for line in register.lines if (line.name, line.role) == (request.subject.name, request.subject.role)
    ]
    if same_name and same_name[-1].key != request.full_fingerprint and not replace:
        raise IdentityError(
            "E-IDENTITY-EXISTS",
            f"{request.subject} has a certificate for another key, signed on {same_name[-1].at[:10]}",
            hint="Ask the site whether it made a new key; if it did, sign again with --replace.",
        )
