"""What a certificate of a federation says, and whether it may be believed.

One DNS name, `{name}.{role}.fedelmy`, is the single carrier of both name and role: TLS compares it without
our help (it is the target-name override of every channel), and nothing else in the certificate is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, cast, get_args

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedelmy_node.domain.names import SiteName, site_name
from fedelmy_node.errors import ConfigError, IdentityError

__all__ = [
    "Role", "Subject", "KEY_USAGES", "UNREADABLE",
    "fingerprint", "full_fingerprint", "public_key", "parse_certificates", "to_pem",
    "subject_of_names", "read_subject", "check_dates", "check_authority", "verify_certificate",
]  # fmt: skip

_SUFFIX: Final = "fedelmy"
KEY_USAGES: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
"""Every node dials and is dialled, so every certificate needs both."""
UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""What `cryptography` raises about what others wrote; most of it is no ValueError."""

Role = Literal["site", "operator"]
"""What a certificate's holder may do: a site trains and delivers, an operator controls and signs plans."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """Whom a certificate names."""

    name: SiteName
    """A site's name; an operator's name follows the same rule."""
    role: Role
    """Decided by whoever signed the certificate."""

    @classmethod
    def of(cls, name: str, role: str) -> Subject:
        """The subject of a name and a role that came from outside; either may be refused."""
        if role not in get_args(Role):
            raise ConfigError("E-CONFIG-VALUE", f"{role!r} is not a role", hint="Use site or operator.")
        return cls(name=site_name(name), role=cast(Role, role))

    @classmethod
    def parse(cls, text: str) -> Subject:
        """The inverse of `str`: `site/north`."""
        role, _, name = text.partition("/")
        return cls.of(name, role)

    @property
    def dns_name(self) -> str:
        """The name in the certificate, and the target-name override of channels to its holder."""
        return f"{self.name}.{self.role}.{_SUFFIX}"

    def __str__(self) -> str:
        return f"{self.role}/{self.name}"


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """The short form for two people on the phone, such as `5F3A-90C1-77DE-0B42-A9E6`.

    Ten bytes, because an impostor needs a key of his own with the *same* fingerprint as the site's: 2^80
    tries. (Collisions among his own keys, 2^40, gain him nothing.) Five groups of four are read aloud easily.
    """
    text = _digest(key)[:10].hex().upper()
    return "-".join(text[i : i + 4] for i in range(0, len(text), 4))


def full_fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """The whole SHA-256 of the public key (its SubjectPublicKeyInfo), for registers and programs."""
    return f"sha256:{_digest(key).hex()}"


def _digest(key: ec.EllipticCurvePublicKey) -> bytes:
    info = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digest = hashes.Hash(hashes.SHA256())
    digest.update(info)
    return digest.finalize()


def public_key(holder: x509.Certificate | x509.CertificateSigningRequest) -> ec.EllipticCurvePublicKey:
    """The holder's P-256 key; other kinds are refused (grpcio's TLS takes no Ed25519, and one is enough)."""
    try:
        key = holder.public_key()
    except UNREADABLE as error:
        raise IdentityError("E-IDENTITY-FILE", f"the public key cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("E-IDENTITY-FILE", "the key is not an ECDSA P-256 key")
    return key


def parse_certificates(pem: bytes, origin: str) -> Sequence[x509.Certificate]:
    """All certificates of a PEM text; `origin` names it in messages."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except UNREADABLE as error:
        raise IdentityError("E-IDENTITY-FILE", f"{origin} holds no certificate") from error


def to_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def subject_of_names(names: Sequence[str]) -> Subject:
    """The subject that DNS names spell; there must be exactly one, of the form `{name}.{role}.fedelmy`."""
    if len(names) != 1:
        raise IdentityError("E-IDENTITY-FILE", f"one name of the form NAME.ROLE.{_SUFFIX} is needed, not {len(names)}")
    name, _, rest = names[0].partition(".")
    role, _, suffix = rest.partition(".")
    try:
        if suffix == _SUFFIX:
            return Subject.of(name, role)
    except ConfigError:
        pass  # the same refusal as below, which names the whole text
    raise IdentityError("E-IDENTITY-FILE", f"{names[0]!r} is not a name of the form NAME.ROLE.{_SUFFIX}")


def read_subject(certificate: x509.Certificate) -> Subject:
    """Whom a leaf certificate names; its form is checked, but not who signed it."""
    public_key(certificate)
    try:
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except UNREADABLE as error:
        raise IdentityError("E-IDENTITY-FILE", f"the certificate is not one of a federation: {error}") from error
    if not set(KEY_USAGES) <= set(usages):
        raise IdentityError("E-IDENTITY-FILE", "the certificate must allow both server and client authentication")
    if any(not isinstance(name, x509.DNSName) for name in alternatives):
        raise IdentityError("E-IDENTITY-FILE", "the certificate has names of other kinds than DNS")
    return subject_of_names(alternatives.get_values_for_type(x509.DNSName))


def check_dates(certificate: x509.Certificate, holder: str, now: datetime | None = None) -> None:
    """Refuse a certificate outside its dates; `holder` says whose it is."""
    now = now or datetime.now(UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begin:
        raise IdentityError(
            "E-IDENTITY-EXPIRED",
            f"the certificate of {holder} begins on {begin:%Y-%m-%d %H:%M} UTC; it is {now:%Y-%m-%d %H:%M}",
            hint="Correct the clock of this machine.",
        )
    if now > end:
        raise IdentityError("E-IDENTITY-EXPIRED", f"the certificate of {holder} expired on {end:%Y-%m-%d %H:%M} UTC")


def check_authority(ca: x509.Certificate) -> None:
    """Refuse anything but a self-signed P-256 certificate that may sign others."""
    public_key(ca)
    try:
        constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints).value
        ca.verify_directly_issued_by(ca)
    except (*UNREADABLE, InvalidSignature) as error:
        raise IdentityError("E-IDENTITY-FILE", "the CA certificate is not one of a federation") from error
    if not constraints.ca:
        raise IdentityError("E-IDENTITY-FILE", "the CA certificate may not sign others")


def verify_certificate(certificate: x509.Certificate, ca: x509.Certificate, now: datetime | None = None) -> Subject:
    """The subject of a certificate that `ca` signed and that is valid now; the first flaw is raised.

    The signature comes first: what an untrusted certificate says of itself is worth nothing.
    """
    check_authority(ca)
    try:
        certificate.verify_directly_issued_by(ca)
    except (*UNREADABLE, InvalidSignature) as error:
        raise IdentityError("E-IDENTITY-UNTRUSTED", "the certificate was not signed by this federation's CA") from error
    subject = read_subject(certificate)
    check_dates(certificate, str(subject), now)
    check_dates(ca, "the federation's CA", now)
    return subject
