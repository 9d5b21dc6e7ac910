"""Contents of certificates; `trust` decides whether to believe them.

Certificates of the federation's own CA have exactly one DNS name, `{name}.{role}.fedelmy`, with
both name and role. Certificates of other CAs have other names, which `trust` maps.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedelmy_node.domain.errors import ConfigError, IdentityError
from fedelmy_node.domain.subject import SUFFIX, Subject

KEY_USAGES: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
"""Every node is both client and server, so every certificate needs both."""
EXPIRY_WARNING_DAYS: Final = 30
_USAGE_TEXTS: Final = {
    ExtendedKeyUsageOID.SERVER_AUTH: "server authentication (serverAuth)",
    ExtendedKeyUsageOID.CLIENT_AUTH: "client authentication (clientAuth)",
}
UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""What `cryptography` raises for invalid input; most of it is not a ValueError."""
# Long names and unusual serial numbers are harmless; keep them out of standard error.
warnings.filterwarnings("ignore", "Attribute's length must be|Parsed a serial number")


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return the short form to compare by phone, such as `5F3A-90C1-77DE-0B42-A9E6`.

    Ten bytes: an impostor needs a key with the *same* fingerprint, 2^80 attempts. Collisions among
    the impostor's own keys (2^40) are useless.
    """
    text = _digest(key)[:10].hex().upper()
    return "-".join(text[i : i + 4] for i in range(0, len(text), 4))


def full_fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return the SHA-256 of the public key (its SubjectPublicKeyInfo)."""
    return f"sha256:{_digest(key).hex()}"


def _digest(key: ec.EllipticCurvePublicKey) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    digest = hashes.Hash(hashes.SHA256())
    digest.update(key.public_bytes(serialization.Encoding.DER, form))
    return digest.finalize()


def public_key(
    holder: x509.Certificate | x509.CertificateSigningRequest,
) -> ec.EllipticCurvePublicKey:
    """Return the P-256 key; refuse other kinds (grpcio's TLS does not support Ed25519)."""
    try:
        key = holder.public_key()
    except UNREADABLE as error:
        raise IdentityError("E-IDENTITY-FILE", f"cannot read the public key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("E-IDENTITY-FILE", "the key is not an ECDSA P-256 key")
    return key


def parse_certificates(pem: bytes, origin: str) -> Sequence[x509.Certificate]:
    """Parse all certificates of a PEM text; `origin` names the source in messages."""
    try:
        certificates = x509.load_pem_x509_certificates(pem)
        for each in certificates:  # these are parsed lazily: damaged ones must raise here
            _ = each.subject, each.issuer, each.not_valid_before_utc, each.not_valid_after_utc
    except UNREADABLE as error:
        raise IdentityError("E-IDENTITY-FILE", f"{origin} contains no valid certificate") from error
    return certificates


def to_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def subject_of_names(names: Sequence[str]) -> Subject:
    """Parse the only DNS name, which must have the form `{name}.{role}.fedelmy`."""
    form = f"NAME.ROLE.{SUFFIX}"
    if len(names) != 1:
        message = f"exactly one name of the form {form} is required, not {len(names)}"
        raise IdentityError("E-IDENTITY-FILE", message)
    name, _, rest = names[0].partition(".")
    role, _, suffix = rest.partition(".")
    try:
        if suffix == SUFFIX:
            return Subject.of(name, role)
    except ConfigError:
        pass  # refused below, with the whole text
    raise IdentityError("E-IDENTITY-FILE", f"{names[0]!r} is not a name of the form {form}")


def dns_names(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names among the subject alternative names."""
    names = _extension(certificate, x509.SubjectAlternativeName)
    return [] if names is None else names.get_values_for_type(x509.DNSName)


def read_subject(certificate: x509.Certificate) -> Subject:
    """Return the subject of a leaf in the federation's form: one DNS name, and no other."""
    names = _extension(certificate, x509.SubjectAlternativeName) or ()
    if any(not isinstance(name, x509.DNSName) for name in names):
        raise IdentityError("E-IDENTITY-FILE", "the certificate has names other than DNS names")
    return subject_of_names(dns_names(certificate))


def check_form(certificate: x509.Certificate) -> None:
    """Refuse a leaf with an unsupported key, or unusable as client or server certificate."""
    public_key(certificate)
    constraints = _extension(certificate, x509.BasicConstraints)
    if constraints is not None and constraints.ca:
        message = "the certificate belongs to a CA, not to a site or an operator"
        raise IdentityError("E-IDENTITY-FILE", message)
    usages = set(_extension(certificate, x509.ExtendedKeyUsage) or ())
    missing = [text for usage, text in _USAGE_TEXTS.items() if usage not in usages]
    if missing:
        message = f"the certificate does not allow {' or '.join(missing)}"
        hint = "Have the CA add both extended key usages, serverAuth and clientAuth."
        raise IdentityError("E-IDENTITY-FILE", message, hint=hint)


def tls_name(certificate: x509.Certificate) -> str:
    """Return a name in the certificate that a TLS client can expect."""
    names = _extension(certificate, x509.SubjectAlternativeName)
    if names is None:
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if common:
            return str(common[0].value)
    else:
        for name in names.get_values_for_type(x509.DNSName):
            return name.replace("*", "any", 1)  # a wildcard matches one label
        for address in names.get_values_for_type(x509.IPAddress):
            return str(address)
    holder = certificate.subject.rfc4514_string()
    message = f"the certificate of {holder!r} has no name that TLS can verify"
    hint = "Have the CA add a DNS name, such as the one in the request."
    raise IdentityError("E-IDENTITY-FILE", message, hint=hint)


def names_holder(certificate: x509.Certificate, name: str) -> bool:
    """Return whether TLS matches `name`; the common name counts only without a SAN."""
    names = _extension(certificate, x509.SubjectAlternativeName)
    if names is None:
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return bool(common) and str(common[0].value).lower() == name.lower()
    wanted, (_, _, parent) = name.lower(), name.lower().partition(".")
    found = {each.lower() for each in names.get_values_for_type(x509.DNSName)}
    return wanted in found or f"*.{parent}" in found


def expiry_warning(holder: str, not_after: datetime, now: datetime | None = None) -> str | None:
    """Return a warning if the certificate expires within 30 days, else None."""
    days = (not_after - (now or datetime.now(UTC))) / timedelta(days=1)
    if days > EXPIRY_WARNING_DAYS:
        return None
    if days <= 0:
        return f"the certificate of {holder} expired on {not_after:%Y-%m-%d}"
    when = {0: "less than a day", 1: "1 day"}.get(round(days), f"{days:.0f} days")
    return f"the certificate of {holder} expires in {when}, on {not_after:%Y-%m-%d}"


def check_dates(certificate: x509.Certificate, holder: str, now: datetime | None = None) -> None:
    """Refuse a certificate outside its validity period; `holder` names it in messages."""
    now = now or datetime.now(UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begin:
        valid = f"not valid before {begin:%Y-%m-%d %H:%M} UTC; it is {now:%Y-%m-%d %H:%M} now"
        message, hint = f"the certificate of {holder} is {valid}", "Correct this machine's clock."
        raise IdentityError("E-IDENTITY-EXPIRED", message, hint=hint)
    if now > end:
        message = f"the certificate of {holder} expired on {end:%Y-%m-%d %H:%M} UTC"
        raise IdentityError("E-IDENTITY-EXPIRED", message)


def check_authority(ca: x509.Certificate) -> None:
    """Refuse a certificate that is not a CA, or whose own signature shows that it is damaged.

    Nobody verifies the signature of a root that is trusted. But a root that differs from
    its peers' copies may verify here and always fail in TLS, for no visible reason.
    """
    if not _is_cross_signed(ca):
        try:
            ca.verify_directly_issued_by(ca)
        except UnsupportedAlgorithm:
            pass  # very old, and says nothing
        except (InvalidSignature, TypeError, ValueError) as error:
            message = f"{ca.subject.rfc4514_string()!r} in ca.pem is damaged: wrong signature"
            raise IdentityError("E-IDENTITY-FILE", message) from error
    constraints = _extension(ca, x509.BasicConstraints)
    if constraints is None or not constraints.ca:
        message = f"{ca.subject.rfc4514_string()!r} in ca.pem is not a CA certificate"
        raise IdentityError("E-IDENTITY-FILE", message)


def _is_cross_signed(ca: x509.Certificate) -> bool:
    """Whether another CA signed it: issuer and key must both say so, as one may be damaged."""
    issuer = _extension(ca, x509.AuthorityKeyIdentifier)
    own = _extension(ca, x509.SubjectKeyIdentifier)
    names_own_key = bool(issuer and own and issuer.key_identifier == own.digest)
    return ca.issuer != ca.subject and not names_own_key


_E = TypeVar("_E", bound=x509.ExtensionType)


def _extension(certificate: x509.Certificate, kind: type[_E]) -> _E | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
    except UNREADABLE as error:
        raise IdentityError("E-IDENTITY-FILE", f"cannot read the certificate: {error}") from error
