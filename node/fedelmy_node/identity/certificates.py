"""What a certificate says; whether it may be believed is the business of `trust`.

In a certificate of the federation's own CA one DNS name, `{name}.{role}.fedelmy`, is the single carrier of both
name and role. Certificates of other CAs have other names, which `trust` maps.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedelmy_node.errors import ConfigError, IdentityError
from fedelmy_node.identity.subject import SUFFIX, Subject

__all__ = [
    "KEY_USAGES", "EXPIRY_WARNING_DAYS", "UNREADABLE",
    "fingerprint", "full_fingerprint", "public_key", "parse_certificates", "to_pem",
    "subject_of_names", "dns_names", "read_subject", "check_form", "tls_name", "names_holder", "expiry_warning",
    "check_dates", "check_authority",
]  # fmt: skip

KEY_USAGES: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
"""Every node dials and is dialled, so every certificate needs both."""
EXPIRY_WARNING_DAYS: Final = 30
"""A certificate that is good for less is spoken of wherever somebody looks."""
_USAGE_TEXTS: Final = dict(
    zip(KEY_USAGES, ("server authentication (serverAuth)", "client authentication (clientAuth)"), strict=True)
)
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
# Names that are too long and odd numbers are no news for our standard error.
warnings.filterwarnings("ignore", "Attribute's length must be|Parsed a serial number")


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
        certificates = x509.load_pem_x509_certificates(pem)
        for each in certificates:  # read only when they are asked for, and damaged ones raise then
            _ = each.subject, each.issuer, each.not_valid_before_utc, each.not_valid_after_utc
    except UNREADABLE as error:
        raise IdentityError("E-IDENTITY-FILE", f"{origin} holds no certificate") from error
    return certificates


def to_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def subject_of_names(names: Sequence[str]) -> Subject:
    """The subject that DNS names spell; there must be exactly one, of the form `{name}.{role}.fedelmy`."""
    if len(names) != 1:
        raise IdentityError("E-IDENTITY-FILE", f"one name of the form NAME.ROLE.{SUFFIX} is needed, not {len(names)}")
    name, _, rest = names[0].partition(".")
    role, _, suffix = rest.partition(".")
    try:
        if suffix == SUFFIX:
            return Subject.of(name, role)
    except ConfigError:
        pass  # the same refusal as below, which names the whole text
    raise IdentityError("E-IDENTITY-FILE", f"{names[0]!r} is not a name of the form NAME.ROLE.{SUFFIX}")


def dns_names(certificate: x509.Certificate) -> list[str]:
    """Its alternative names that are DNS names."""
    names = _extension(certificate, x509.SubjectAlternativeName)
    return [] if names is None else names.get_values_for_type(x509.DNSName)


def read_subject(certificate: x509.Certificate) -> Subject:
    """Whom a leaf names that keeps to the federation's form: one DNS name, and no other."""
    names = _extension(certificate, x509.SubjectAlternativeName) or ()
    if any(not isinstance(name, x509.DNSName) for name in names):
        raise IdentityError("E-IDENTITY-FILE", "the certificate has names of other kinds than DNS")
    return subject_of_names(dns_names(certificate))


def check_form(certificate: x509.Certificate) -> None:
    """Refuse a leaf that cannot be used at both ends of a connection, or whose key is of another kind."""
    public_key(certificate)
    constraints = _extension(certificate, x509.BasicConstraints)
    if constraints is not None and constraints.ca:
        raise IdentityError("E-IDENTITY-FILE", "the certificate is that of a CA, not of a site or an operator")
    usages = set(_extension(certificate, x509.ExtendedKeyUsage) or ())
    missing = [text for usage, text in _USAGE_TEXTS.items() if usage not in usages]
    if missing:
        raise IdentityError(
            "E-IDENTITY-FILE",
            f"the certificate does not allow {' or '.join(missing)}",
            hint="Every node calls and is called: have the CA put both extended key usages, serverAuth and clientAuth, "
            "into the certificate.",
        )


def tls_name(certificate: x509.Certificate) -> str:
    """A name in the certificate that TLS can compare: what a channel to its holder expects to find."""
    names = _extension(certificate, x509.SubjectAlternativeName)
    if names is None:
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if common:
            return str(common[0].value)
    else:
        for name in names.get_values_for_type(x509.DNSName):
            return name.replace("*", "any", 1)  # a wildcard stands for one label
        for address in names.get_values_for_type(x509.IPAddress):
            return str(address)
    raise IdentityError(
        "E-IDENTITY-FILE",
        f"the certificate of {certificate.subject.rfc4514_string()!r} has no name that TLS can compare",
        hint="Have the CA put a DNS name into it, such as the one in the request.",
    )


def names_holder(certificate: x509.Certificate, name: str) -> bool:
    """Whether TLS finds `name` in the certificate; alternative names, if there are any, are all that counts."""
    names = _extension(certificate, x509.SubjectAlternativeName)
    if names is None:
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return bool(common) and str(common[0].value).lower() == name.lower()
    wanted, (_, _, parent) = name.lower(), name.lower().partition(".")
    found = {each.lower() for each in names.get_values_for_type(x509.DNSName)}
    return wanted in found or f"*.{parent}" in found


def expiry_warning(holder: str, not_after: datetime, now: datetime | None = None) -> str | None:
    """What to say of a certificate that ends soon or has ended; None if it is good for more than a month."""
    days = (not_after - (now or datetime.now(UTC))) / timedelta(days=1)
    if days > EXPIRY_WARNING_DAYS:
        return None
    if days <= 0:
        return f"the certificate of {holder} expired on {not_after:%Y-%m-%d}"
    when = {0: "less than a day", 1: "1 day"}.get(round(days), f"{days:.0f} days")
    return f"the certificate of {holder} expires in {when}, on {not_after:%Y-%m-%d}"


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
    """Refuse anything but a certificate that may sign others."""
    constraints = _extension(ca, x509.BasicConstraints)
    if constraints is None or not constraints.ca:
        raise IdentityError("E-IDENTITY-FILE", f"{ca.subject.rfc4514_string()!r} in ca.pem is no CA: it may not sign")


_E = TypeVar("_E", x509.SubjectAlternativeName, x509.ExtendedKeyUsage, x509.BasicConstraints)


def _extension(certificate: x509.Certificate, kind: type[_E]) -> _E | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
    except UNREADABLE as error:
        raise IdentityError("E-IDENTITY-FILE", f"the certificate cannot be read: {error}") from error
