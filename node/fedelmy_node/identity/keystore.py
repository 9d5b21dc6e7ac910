"""The identity of a site or operator: a few files in one directory.

    key.pem           private key, created here, mode 0600; never leaves this machine
    request.csr       certificate signing request
    certificate.pem   signed certificate, with intermediates if any
    ca.pem            trusted CAs
    revoked.pem       revocation lists of these CAs, if any
    next-*            key and request of a rotation, until its certificate is installed

`init` creates the first two, `install` the next two; `load` reads and verifies all. `LiveIdentity`
reloads them while a daemon runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from fedelmy_node.domain.errors import IdentityError
from fedelmy_node.domain.subject import Role, Subject, TrustRules
from fedelmy_node.identity.certificates import (
    expiry_warning,
    fingerprint,
    parse_certificates,
    public_key,
    to_pem,
)
from fedelmy_node.identity.keys import (
    LIST_BYTES,
    encode_key,
    locked,
    make_directory,
    parse_key,
    read_file,
    read_key,
    read_private,
)
from fedelmy_node.identity.requests import Request, make_request, read_request
from fedelmy_node.identity.trust import Trust
from fedelmy_node.store.durable_files import cannot_write, publish, write_durably

if TYPE_CHECKING:
    from fedelmy_node.identity.revocation_list import RevocationList


_KEY: Final = "key.pem"
_REQUEST: Final = "request.csr"
_CERTIFICATE: Final = "certificate.pem"
_CA: Final = "ca.pem"
_LISTS: Final = "revoked.pem"
_NEXT: Final = "next-"
FILES: Final = (_KEY, _CERTIFICATE, _CA, _LISTS, _NEXT + _CERTIFICATE)
"""The files that `load` reads."""
_LIVE_FLAWS: Final = frozenset({"E-IDENTITY-EXPIRED", "E-IDENTITY-REVOKED", "E-IDENTITY-PIN"})
"""Peers refuse our certificate for these; we can still verify theirs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """A key, its certificate and the trusted CAs: all that TLS and signatures need."""

    subject: Subject
    key_pem: bytes = field(repr=False)
    """The private key; never shown."""
    certificate_pem: bytes = field(repr=False)
    """The leaf, then its intermediates; peers already have the CA."""
    trust: Trust = field(repr=False)
    not_after: datetime
    fingerprint: str
    """Short fingerprint of the key."""
    flaw: IdentityError | None = field(default=None, repr=False)
    """Why peers will refuse it."""

    @property
    def ca_pem(self) -> bytes:
        return self.trust.ca_pem

    @property
    def not_before(self) -> datetime:
        return parse_certificates(self.certificate_pem, "certificate.pem")[0].not_valid_before_utc

    def with_rules(self, rules: TrustRules) -> Identity:
        """Return the same identity with other trust rules."""
        return replace(self, trust=replace(self.trust, rules=rules))

    def warnings(self, now: datetime | None = None) -> tuple[str, ...]:
        """Return problems that need attention soon."""
        expiry = expiry_warning(str(self.subject), self.not_after, now)
        stale = (one.issuer.rfc4514_string() for one in self.trust.lists if one.is_stale(now))
        found = []
        if self.flaw is not None and self.flaw.code != "E-IDENTITY-EXPIRED":  # see `expiry`
            found.append(f"peers refuse this site: {self.flaw}")
        if expiry:
            found.append(expiry)
        found += (f"the revocation list of {ca} is outdated: install the newest" for ca in stale)
        return tuple(found)


def init(directory: Path, name: str, role: Role) -> str:
    """Create a key and its request, and return the fingerprint; never overwrite a key."""
    subject = Subject.of(name, role)
    if (directory / _KEY).exists():
        hint = "Show it with `fedelmy-node identity show`, or replace it with `identity rotate`."
        message = f"{directory} already contains a key"
        raise IdentityError("E-IDENTITY-EXISTS", message, hint=hint)
    make_directory(directory)
    return _make_key(directory, subject, "")


def _make_key(directory: Path, subject: Subject, prefix: str) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    # The key comes last: without it, an interrupted command can simply be repeated.
    write_durably(directory / (prefix + _REQUEST), make_request(subject, key), 0o644)
    write_durably(directory / (prefix + _KEY), encode_key(key), 0o600)
    return fingerprint(key.public_key())


def pending(directory: Path) -> Request:
    """Return the request of an initialised directory."""
    _require(directory)
    _finish_rotation(directory)
    return _request(directory, "")


def rotate(directory: Path) -> Request:
    """Create a new key beside the current one and return its request; idempotent."""
    current = pending(directory)
    if not (directory / (_NEXT + _KEY)).exists():
        _make_key(directory, current.subject, _NEXT)
    return _request(directory, _NEXT)


def rotation(directory: Path) -> Request | None:
    """Return the request of a rotation that waits for its certificate."""
    return _request(directory, _NEXT) if (directory / (_NEXT + _KEY)).exists() else None


def install(directory: Path, certificate_file: Path, ca_file: Path | None = None) -> Identity:
    """Install a certificate with its intermediates and its CA, which may be in `ca_file`.

    Also used for renewals. A certificate for the key of a rotation activates that key. If
    interrupted at any point, either the old or the new identity can be loaded.
    """
    request = pending(directory)
    leaf, *others = parse_certificates(read_file(certificate_file), str(certificate_file))
    prefix = ""
    if public_key(leaf) != request.key:
        rotated = rotation(directory)
        if rotated is None or public_key(leaf) != rotated.key:
            message = f"{certificate_file} was signed for another key"
            raise IdentityError("E-IDENTITY-MISMATCH", message)
        prefix = _NEXT
    chain = (leaf, *(other for other in others if other.issuer != other.subject))
    roots = [other for other in others if other.issuer == other.subject]
    ca_pem = _authorities(directory, roots, certificate_file, ca_file)
    trust = _trust(directory, TrustRules(), chain, ca_pem)
    try:
        subject = trust.verify(chain, unnamed=request.subject)
    except IdentityError as error:
        if error.code != "E-IDENTITY-UNTRUSTED" or ca_file is None:
            raise
        hint = "FILE must contain the certificate, then all intermediates; --ca names the root."
        message = f"{certificate_file} does not chain to {ca_file}: {error.message}"
        raise IdentityError(error.code, message, hint=hint) from error
    if subject != request.subject:
        message = f"{certificate_file} names {subject}, but the request names {request.subject}"
        raise IdentityError("E-IDENTITY-MISMATCH", message)
    # While the certificate is replaced, trust both CAs: either certificate must find its own.
    old_ca = (directory / _CA).read_bytes() if (directory / _CA).exists() else b""
    if old_ca != ca_pem:
        write_durably(directory / _CA, old_ca + ca_pem, 0o644)
    write_durably(directory / (prefix + _CERTIFICATE), b"".join(map(to_pem, chain)), 0o644)
    _finish_rotation(directory)
    if old_ca not in (ca_pem, b""):
        write_durably(directory / _CA, ca_pem, 0o644)
    return load(directory)


def install_lists(directory: Path, pem: bytes, origin: str) -> tuple[RevocationList, ...]:
    """Install revocation lists of trusted CAs, never an older one; return all current lists."""
    with locked(directory):  # a daemon and a command may install at the same time
        trust = load_unchecked(directory).trust
        offered, lists = trust.offered(pem, origin)
        for one in offered:
            held = trust.number(one.issuer)
            if one.number < held:
                message = f"{origin} contains list {one.number}, but list {held} is installed"
                raise IdentityError("E-IDENTITY-LIST", message)
        text = b"".join(one.pem for one in lists)
        if text != trust.lists_pem:
            write_durably(directory / _LISTS, text, 0o644)
    return lists


def is_installed(directory: Path) -> bool:
    """Return whether a certificate was installed, valid or not."""
    return (directory / _CERTIFICATE).exists()


def load(directory: Path, rules: TrustRules | None = None) -> Identity:
    """Load the identity and verify it as a peer would: key, CA, dates, revocation, name."""
    identity = load_unchecked(directory, rules)
    if identity.flaw is not None:
        raise identity.flaw
    return identity


def load_unchecked(directory: Path, rules: TrustRules | None = None) -> Identity:
    """Load the identity even if it is expired, revoked or pinned to another key; see `flaw`."""
    _require(directory)
    if not is_installed(directory):
        raise IdentityError(
            "E-IDENTITY-MISSING",
            f"the key in {directory} has no certificate yet",
            hint=f"Have the operator sign {directory / _REQUEST} with `fedelmy-launch ca sign`, "
            "then run `fedelmy-node identity install FILE` with the result.",
        )
    key_pem, chain = _pair(directory)
    trust = _trust(directory, rules or TrustRules(), chain)
    unnamed = _requested(directory)
    flaw = None
    try:
        subject = trust.verify(chain, unnamed=unnamed)
    except IdentityError as error:
        if error.code not in _LIVE_FLAWS:
            raise
        flaw, subject = error, trust.holder(chain, unnamed)
    leaf = chain[0]
    return Identity(
        subject=subject,
        key_pem=key_pem,
        certificate_pem=b"".join(map(to_pem, chain)),
        trust=trust,
        not_after=leaf.not_valid_after_utc,
        fingerprint=fingerprint(public_key(leaf)),
        flaw=flaw,
    )


def _require(directory: Path) -> None:
    if not (directory / _KEY).exists():
        raise IdentityError("E-IDENTITY-MISSING", f"no identity in {directory}")


def _request(directory: Path, prefix: str) -> Request:
    request = read_request(directory / (prefix + _REQUEST))
    if request.key != read_key(directory / (prefix + _KEY)).public_key():
        message = f"{prefix}{_REQUEST} and {prefix}{_KEY} in {directory} do not match"
        raise IdentityError("E-IDENTITY-MISMATCH", message)
    return request


def _requested(directory: Path) -> Subject | None:
    """Return the subject of our own request: for a certificate with names of another CA."""
    path = directory / _REQUEST
    return read_request(path).subject if path.exists() else None


def _finish_rotation(directory: Path) -> None:
    """Replace the current files if the new certificate is installed."""
    if not (directory / (_NEXT + _CERTIFICATE)).exists():
        return
    try:
        for name in (_KEY, _REQUEST, _CERTIFICATE):  # `_pair` finds a pair after each of them
            if (directory / (_NEXT + name)).exists():
                publish(directory / (_NEXT + name), directory / name)
    except OSError as error:
        raise cannot_write(directory / _KEY, error) from error


def _pair(directory: Path) -> tuple[bytes, tuple[x509.Certificate, ...]]:
    """Return the newest certificate with its key, also after an interrupted rotation."""
    for certificate in (directory / (_NEXT + _CERTIFICATE), directory / _CERTIFICATE):
        if not certificate.exists():
            continue
        chain = tuple(parse_certificates(read_file(certificate), str(certificate)))
        for key in (directory / _KEY, directory / (_NEXT + _KEY)):
            if key.exists():
                key_pem = read_private(key)
                if parse_key(key_pem, key).public_key() == public_key(chain[0]):
                    return key_pem, chain
    message = f"{_CERTIFICATE} and {_KEY} in {directory} do not match"
    raise IdentityError("E-IDENTITY-MISMATCH", message)


def _trust(
    directory: Path,
    rules: TrustRules,
    chain: Sequence[x509.Certificate],
    ca_pem: bytes | None = None,
) -> Trust:
    ca_path, lists = directory / _CA, directory / _LISTS
    if ca_pem is None:
        ca_pem = read_file(ca_path)
        parse_certificates(ca_pem, str(ca_path))  # so that messages name the file
    lists_pem = read_file(lists, LIST_BYTES) if lists.exists() else b""
    return Trust(ca_pem, lists_pem, rules, tuple(chain[1:]))


def _authorities(
    directory: Path, found: Sequence[x509.Certificate], certificate_file: Path, ca_file: Path | None
) -> bytes:
    """Return the CAs to trust; a renewal must not change them silently."""
    if ca_file is not None:
        return b"".join(map(to_pem, parse_certificates(read_file(ca_file), str(ca_file))))
    path = directory / _CA
    held = parse_certificates(read_file(path), str(path)) if path.exists() else []
    if not found and not held:
        message = f"{certificate_file} must contain a certificate and its CA"
        hint = "Use the file from `fedelmy-launch ca sign`; for another CA, add --ca."
        raise IdentityError("E-IDENTITY-FILE", message, hint=hint)
    if held and any(ca not in held for ca in found):
        raise IdentityError(
            "E-IDENTITY-MISMATCH",
            "the certificate is from a CA that this identity does not trust",
            hint="To join another federation, use another --state; "
            "if the CA was renewed, pass its certificate with --ca.",
        )
    return b"".join(map(to_pem, held or found))
