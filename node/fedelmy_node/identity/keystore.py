"""The identity of a site or an operator as four files in one directory.

    key.pem           the private key, made here, mode 0600; it never leaves this machine
    request.csr       what the federation's CA is asked to sign
    certificate.pem   what it signed
    ca.pem            the CA itself: whom this identity trusts

`init` makes the first two, `install` the other two; `load` reads them all and believes none unchecked.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedelmy_node.durable import write_durably
from fedelmy_node.errors import FedelmyError, IdentityError
from fedelmy_node.identity.certificates import (
    Role,
    Subject,
    fingerprint,
    parse_certificates,
    public_key,
    to_pem,
    verify_certificate,
)
from fedelmy_node.identity.files import make_directory, read_file, read_private
from fedelmy_node.identity.requests import Request, make_request, read_request

__all__ = [
    "Identity",
    "LiveIdentity",
    "init",
    "pending",
    "install",
    "is_installed",
    "load",
    "read_key",
    "encode_key",
]

_log = logging.getLogger(__name__)

_KEY: Final = "key.pem"
_REQUEST: Final = "request.csr"
_CERTIFICATE: Final = "certificate.pem"
_CA: Final = "ca.pem"


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """A key with the certificate that proves whose it is: all that TLS and signatures need."""

    subject: Subject
    """Whom the certificate names."""
    key_pem: bytes = field(repr=False)
    """The private key; never shown."""
    certificate_pem: bytes = field(repr=False)
    """The leaf alone: every peer has the CA already."""
    ca_pem: bytes = field(repr=False)
    """The one authority that this identity trusts."""
    not_after: datetime
    """When the certificate expires."""
    fingerprint: str
    """Of the key, in the short form."""


def init(directory: Path, name: str, role: Role) -> str:
    """Make a key and the request for its certificate; returns the fingerprint. A key is never overwritten."""
    subject = Subject.of(name, role)
    if (directory / _KEY).exists():
        raise IdentityError(
            "E-IDENTITY-EXISTS",
            f"{directory} holds a key already",
            hint="`fedelmy-node identity show` prints its fingerprint; to make a new key, move it away.",
        )
    make_directory(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    # The key comes last: it marks a finished `init`, so that one that was cut short can simply be repeated.
    write_durably(directory / _REQUEST, make_request(subject, key), 0o644)
    write_durably(directory / _KEY, encode_key(key), 0o600)
    return fingerprint(key.public_key())


def pending(directory: Path) -> Request:
    """The request of an initialised directory, for printing it again and for sending it."""
    _require(directory)
    request = read_request(directory / _REQUEST)
    if request.key != read_key(directory / _KEY).public_key():
        raise IdentityError("E-IDENTITY-MISMATCH", f"{_REQUEST} and {_KEY} in {directory} do not belong together")
    return request


def install(directory: Path, certificate_file: Path) -> Identity:
    """Take in the file that `fedelmy-launch ca sign` wrote: the leaf, then its CA. Repeated for a renewal."""
    request = pending(directory)
    certificates = parse_certificates(read_file(certificate_file), str(certificate_file))
    if len(certificates) != 2:
        raise IdentityError(
            "E-IDENTITY-FILE",
            f"{certificate_file} must hold a certificate and its CA, not {len(certificates)}",
        )
    leaf, ca = certificates
    if public_key(leaf) != request.key:
        raise IdentityError("E-IDENTITY-MISMATCH", f"{certificate_file} was signed for another key than this one")
    subject = verify_certificate(leaf, ca)
    if subject != request.subject:
        raise IdentityError(
            "E-IDENTITY-MISMATCH", f"{certificate_file} names {subject}, but {request.subject} was asked for"
        )
    _refuse_other_authority(directory / _CA, ca)
    write_durably(directory / _CA, to_pem(ca), 0o644)
    write_durably(directory / _CERTIFICATE, to_pem(leaf), 0o644)
    return load(directory)


def is_installed(directory: Path) -> bool:
    """Whether a certificate was installed; `load` says whether it is any good."""
    return (directory / _CERTIFICATE).exists()


def load(directory: Path) -> Identity:
    """The installed identity, checked as a peer would check it: key, CA's signature, dates, name."""
    _require(directory)
    if not is_installed(directory):
        raise IdentityError(
            "E-IDENTITY-MISSING",
            f"the key in {directory} has no certificate yet",
            hint=f"Send {directory / _REQUEST} to the operator, who runs `fedelmy-launch ca sign` on it; "
            "then run `fedelmy-node identity install FILE` with the file that comes back.",
        )
    key_pem = read_private(directory / _KEY)
    leaf, ca = _one_certificate(directory / _CERTIFICATE), _one_certificate(directory / _CA)
    subject = verify_certificate(leaf, ca)
    if public_key(leaf) != _parse_key(key_pem, directory / _KEY).public_key():
        raise IdentityError("E-IDENTITY-MISMATCH", f"{_CERTIFICATE} and {_KEY} in {directory} do not belong together")
    return Identity(
        subject=subject,
        key_pem=key_pem,
        certificate_pem=to_pem(leaf),
        ca_pem=to_pem(ca),
        not_after=leaf.not_valid_after_utc,
        fingerprint=fingerprint(public_key(leaf)),
    )


class LiveIdentity:
    """An identity that follows its files, so that a renewed certificate is used without a restart.

    Called, it gives the identity of the moment. A damaged renewal is logged and the old identity kept: it is
    still valid, or else peers refuse it and say so.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._seen = self._look()  # before loading: a renewal in between is then noticed at the next call
        self._identity = load(directory)

    def __call__(self) -> Identity:
        with self._lock:
            seen = self._look()
            if seen != self._seen:
                self._seen = seen
                self._reload()
            return self._identity

    def _look(self) -> tuple[int, int]:
        try:
            status = (self._directory / _CERTIFICATE).stat()
        except OSError:
            return (0, 0)
        return (status.st_ino, status.st_mtime_ns)

    def _reload(self) -> None:
        try:
            self._identity = load(self._directory)
        except FedelmyError as error:
            _log.error("renewed certificate not used: %s", error.code, extra={"private": error.whole})
        else:
            _log.info("renewed certificate in use, valid until %s", self._identity.not_after.isoformat())


def encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """PEM without a passphrase: a daemon starts unattended, and the file's mode is what protects it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The private key in a file that only its owner may read."""
    return _parse_key(read_private(path), path)


def _parse_key(pem: bytes, path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise IdentityError("E-IDENTITY-FILE", f"{path} is not a private key of this software") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("E-IDENTITY-FILE", f"{path} is not an ECDSA P-256 key")
    return key


def _require(directory: Path) -> None:
    if not (directory / _KEY).exists():
        raise IdentityError("E-IDENTITY-MISSING", f"there is no identity in {directory}")


def _one_certificate(path: Path) -> x509.Certificate:
    certificates = parse_certificates(read_file(path), str(path))
    if len(certificates) != 1:
        raise IdentityError("E-IDENTITY-FILE", f"{path} must hold one certificate, not {len(certificates)}")
    return certificates[0]


def _refuse_other_authority(path: Path, ca: x509.Certificate) -> None:
    """A renewal must not change whom this site trusts without anybody noticing."""
    if path.exists() and _one_certificate(path) != ca:
        raise IdentityError(
            "E-IDENTITY-MISMATCH",
            "the certificate comes from another CA than the one this identity trusts",
            hint=f"If this site is to join another federation, use another --state; "
            f"if the CA itself was renewed, remove {path} first.",
        )
