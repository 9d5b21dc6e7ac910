"""The identity of a site or an operator as a few files in one directory.

    key.pem           the private key, made here, mode 0600; it never leaves this machine
    request.csr       what the CA is asked to sign
    certificate.pem   what it signed, with the intermediate certificates, if there are any
    ca.pem            whom this identity trusts: one CA or several
    revoked.pem       what these have revoked; absent until there is a list
    next-*            key and request of a rotation, beside those in use until their certificate comes

`init` makes the first two, `install` the other two; `load` reads them all and believes none unchecked. `live` follows
them while a daemon runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from fedelmy_node.durable import cannot_write, publish, write_durably
from fedelmy_node.errors import IdentityError
from fedelmy_node.identity.certificates import expiry_warning, fingerprint, parse_certificates, public_key, to_pem
from fedelmy_node.identity.files import LIST_BYTES, locked, make_directory, read_file, read_private
from fedelmy_node.identity.keys import encode_key, parse_key, read_key
from fedelmy_node.identity.requests import Request, make_request, read_request
from fedelmy_node.identity.rules import TrustRules
from fedelmy_node.identity.subject import Role, Subject
from fedelmy_node.identity.trust import Trust

if TYPE_CHECKING:
    from fedelmy_node.identity.revocation import RevocationList

__all__ = [
    "Identity",
    "init",
    "pending",
    "rotate",
    "rotation",
    "install",
    "install_lists",
    "is_installed",
    "load",
    "look_at",
    "FILES",
]

_KEY: Final = "key.pem"
_REQUEST: Final = "request.csr"
_CERTIFICATE: Final = "certificate.pem"
_CA: Final = "ca.pem"
_LISTS: Final = "revoked.pem"
_NEXT: Final = "next-"
FILES: Final = (_KEY, _CERTIFICATE, _CA, _LISTS, _NEXT + _CERTIFICATE)
"""What `look_at` reads."""
_LIVE_FLAWS: Final = frozenset({"E-IDENTITY-EXPIRED", "E-IDENTITY-REVOKED", "E-IDENTITY-PIN"})
"""What others will hold against our certificate; it takes nothing from our judgement of theirs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """A key with the certificate that proves whose it is, and whom it believes: all that TLS and signatures need."""

    subject: Subject
    """Whom the certificate names."""
    key_pem: bytes = field(repr=False)
    """The private key; never shown."""
    certificate_pem: bytes = field(repr=False)
    """The leaf, then its intermediates: every peer has the CA already."""
    trust: Trust = field(repr=False)
    """Whom this identity believes."""
    not_after: datetime
    """When the certificate expires."""
    fingerprint: str
    """Of the key, in the short form."""
    flaw: IdentityError | None = field(default=None, repr=False)
    """Why others will not believe it."""

    @property
    def ca_pem(self) -> bytes:
        """The authorities that this identity trusts."""
        return self.trust.ca_pem

    @property
    def not_before(self) -> datetime:
        """When its certificate begins."""
        return parse_certificates(self.certificate_pem, "certificate.pem")[0].not_valid_before_utc

    def trusting(self, rules: TrustRules) -> Identity:
        """The same identity with another word about names and keys."""
        return replace(self, trust=replace(self.trust, rules=rules))

    def warnings(self, now: datetime | None = None) -> tuple[str, ...]:
        """What should be seen to soon."""
        expiry = expiry_warning(str(self.subject), self.not_after, now)
        stale = (
            f"the revocation list of {one.issuer.rfc4514_string()} is out of date: install its newest one"
            for one in self.trust.lists
            if one.is_stale(now)
        )
        refused = self.flaw is not None and self.flaw.code != "E-IDENTITY-EXPIRED"  # of that, `expiry` speaks
        flaws = (f"others refuse this site: {self.flaw}",) if refused else ()
        return flaws + ((expiry,) if expiry else ()) + tuple(stale)


def init(directory: Path, name: str, role: Role) -> str:
    """Make a key and the request for its certificate; returns the fingerprint. A key is never overwritten."""
    subject = Subject.of(name, role)
    if (directory / _KEY).exists():
        raise IdentityError(
            "E-IDENTITY-EXISTS",
            f"{directory} holds a key already",
            hint="`fedelmy-node identity show` prints its fingerprint; `fedelmy-node identity rotate` makes a new key.",
        )
    make_directory(directory)
    return _make_key(directory, subject, "")


def _make_key(directory: Path, subject: Subject, prefix: str) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    # The key comes last: it marks that both are there, so that a command that was cut short can simply be repeated.
    write_durably(directory / (prefix + _REQUEST), make_request(subject, key), 0o644)
    write_durably(directory / (prefix + _KEY), encode_key(key), 0o600)
    return fingerprint(key.public_key())


def pending(directory: Path) -> Request:
    """The request of an initialised directory, for printing it again and for sending it."""
    _require(directory)
    _settle(directory)
    return _request(directory, "")


def rotate(directory: Path) -> Request:
    """The request for a new key, made beside the old one, which stays in use; asked again, the same."""
    current = pending(directory)
    if not (directory / (_NEXT + _KEY)).exists():
        _make_key(directory, current.subject, _NEXT)
    return _request(directory, _NEXT)


def rotation(directory: Path) -> Request | None:
    """The request of a rotation whose certificate has not come yet."""
    return _request(directory, _NEXT) if (directory / (_NEXT + _KEY)).exists() else None


def install(directory: Path, certificate_file: Path, ca_file: Path | None = None) -> Identity:
    """Take in a certificate: the leaf, its intermediates, and its CA there or in `ca_file`. Repeated for a renewal.

    A certificate for the key of a rotation puts that key into use. Whenever this is cut short, the old identity
    or the new one can be loaded.
    """
    request = pending(directory)
    leaf, *others = parse_certificates(read_file(certificate_file), str(certificate_file))
    prefix = ""
    if public_key(leaf) != request.key:
        rotated = rotation(directory)
        if rotated is None or public_key(leaf) != rotated.key:
            raise IdentityError("E-IDENTITY-MISMATCH", f"{certificate_file} was signed for another key than this one")
        prefix = _NEXT
    chain = (leaf, *(other for other in others if other.issuer != other.subject))
    ca_pem = _authorities(directory, [o for o in others if o.issuer == o.subject], certificate_file, ca_file)
    try:
        subject = _trust(directory, TrustRules(), chain, ca_pem).verify(chain, unnamed=request.subject)
    except IdentityError as error:
        if error.code != "E-IDENTITY-UNTRUSTED" or ca_file is None:
            raise
        hint = "FILE must hold the certificate, then all its intermediates; --ca names the root that they lead to."
        raise IdentityError(
            error.code, f"{certificate_file} does not lead to {ca_file}: {error.message}", hint=hint
        ) from error
    if subject != request.subject:
        raise IdentityError(
            "E-IDENTITY-MISMATCH", f"{certificate_file} names {subject}, but {request.subject} was asked for"
        )
    # Between the old certificate and the new one, both CAs are trusted: either certificate must find its own.
    old_ca = (directory / _CA).read_bytes() if (directory / _CA).exists() else b""
    if old_ca != ca_pem:
        write_durably(directory / _CA, old_ca + ca_pem, 0o644)
    write_durably(directory / (prefix + _CERTIFICATE), b"".join(map(to_pem, chain)), 0o644)
    _settle(directory)
    if old_ca not in (ca_pem, b""):
        write_durably(directory / _CA, ca_pem, 0o644)
    return load(directory)


def install_lists(directory: Path, pem: bytes, origin: str) -> tuple[RevocationList, ...]:
    """Take in revocation lists that our CA signed; a list never replaces a newer one. Returns those in force."""
    with locked(directory):  # a daemon and a command may both bring one
        trust = look_at(directory).trust
        offered, lists = trust.offered(pem, origin)
        for one in offered:
            held = trust.number(one.issuer)
            if one.number < held:
                raise IdentityError(
                    "E-IDENTITY-LIST", f"{origin} holds list {one.number}, but list {held} is in force already"
                )
        text = b"".join(one.pem for one in lists)
        if text != trust.lists_pem:
            write_durably(directory / _LISTS, text, 0o644)
    return lists


def is_installed(directory: Path) -> bool:
    """Whether a certificate was installed; `load` says whether it is any good."""
    return (directory / _CERTIFICATE).exists()


def load(directory: Path, rules: TrustRules | None = None) -> Identity:
    """The installed identity, checked as a peer would check it: key, CA's signature, dates, revocation, name."""
    identity = look_at(directory, rules)
    if identity.flaw is not None:
        raise identity.flaw
    return identity


def look_at(directory: Path, rules: TrustRules | None = None) -> Identity:
    """The installed identity, even one that others will not believe."""
    _require(directory)
    if not is_installed(directory):
        raise IdentityError(
            "E-IDENTITY-MISSING",
            f"the key in {directory} has no certificate yet",
            hint=f"Send {directory / _REQUEST} to the operator, who runs `fedelmy-launch ca sign` on it; "
            "then run `fedelmy-node identity install FILE` with the file that comes back.",
        )
    key_pem, chain = _pair(directory)
    trust = _trust(directory, rules or TrustRules(), chain)
    unnamed = _asked(directory)
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
        raise IdentityError("E-IDENTITY-MISSING", f"there is no identity in {directory}")


def _request(directory: Path, prefix: str) -> Request:
    request = read_request(directory / (prefix + _REQUEST))
    if request.key != read_key(directory / (prefix + _KEY)).public_key():
        raise IdentityError(
            "E-IDENTITY-MISMATCH", f"{prefix}{_REQUEST} and {prefix}{_KEY} in {directory} do not belong together"
        )
    return request


def _asked(directory: Path) -> Subject | None:
    """Whom our own request names: what an own certificate means that some CA gave other names."""
    path = directory / _REQUEST
    return read_request(path).subject if path.exists() else None


def _settle(directory: Path) -> None:
    """Finish a rotation whose certificate is there: its files take the places of those that were in use."""
    if not (directory / (_NEXT + _CERTIFICATE)).exists():
        return
    try:
        for name in (_KEY, _REQUEST, _CERTIFICATE):  # `_pair` finds a pair after each of them
            if (directory / (_NEXT + name)).exists():
                publish(directory / (_NEXT + name), directory / name)
    except OSError as error:
        raise cannot_write(directory / _KEY, error) from error


def _pair(directory: Path) -> tuple[bytes, tuple[x509.Certificate, ...]]:
    """The newest certificate, with the key that it is for, wherever a rotation that was cut short left both."""
    certificates = [path for name in (_NEXT + _CERTIFICATE, _CERTIFICATE) if (path := directory / name).exists()]
    for path in certificates:
        chain = tuple(parse_certificates(read_file(path), str(path)))
        for key_path in (directory / _KEY, directory / (_NEXT + _KEY)):
            if key_path.exists():
                key_pem = read_private(key_path)
                if parse_key(key_pem, key_path).public_key() == public_key(chain[0]):
                    return key_pem, chain
    raise IdentityError("E-IDENTITY-MISMATCH", f"{_CERTIFICATE} and {_KEY} in {directory} do not belong together")


def _trust(directory: Path, rules: TrustRules, chain: Sequence[x509.Certificate], ca_pem: bytes | None = None) -> Trust:
    lists = directory / _LISTS
    ca_path = directory / _CA
    if ca_pem is None:
        ca_pem = read_file(ca_path)
        parse_certificates(ca_pem, str(ca_path))  # named in messages
    return Trust(ca_pem, read_file(lists, LIST_BYTES) if lists.exists() else b"", rules, tuple(chain[1:]))


def _authorities(
    directory: Path, found: Sequence[x509.Certificate], certificate_file: Path, ca_file: Path | None
) -> bytes:
    """Whom to trust from now on. A renewal must not change that without anybody noticing."""
    if ca_file is not None:
        return b"".join(map(to_pem, parse_certificates(read_file(ca_file), str(ca_file))))
    path = directory / _CA
    held = parse_certificates(read_file(path), str(path)) if path.exists() else []
    if not found and not held:
        raise IdentityError(
            "E-IDENTITY-FILE",
            f"{certificate_file} must hold a certificate and its CA",
            hint="Use the file that `fedelmy-launch ca sign` wrote; name the certificate of another CA with --ca.",
        )
    if held and any(ca not in held for ca in found):
        raise IdentityError(
            "E-IDENTITY-MISMATCH",
            "the certificate comes from another CA than the one this identity trusts",
            hint="If this site is to join another federation, use another --state; "
            "if the CA itself was renewed, name its certificate with --ca.",
        )
    return b"".join(map(to_pem, held or found))
