"""Revocation lists: X.509 CRLs, one per CA; a newer list replaces the older one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from fedelmy_node.domain.errors import IdentityError
from fedelmy_node.identity.certificates import UNREADABLE

_BEGIN: Final = b"-----BEGIN X509 CRL-----"
_END: Final = b"-----END X509 CRL-----"


@dataclass(frozen=True, slots=True)
class RevocationList:
    """The revoked certificates of one CA."""

    crl: x509.CertificateRevocationList = field(repr=False)
    number: int
    """Increases with every list of the CA."""

    @property
    def issuer(self) -> x509.Name:
        return self.crl.issuer

    @property
    def pem(self) -> bytes:
        return self.crl.public_bytes(serialization.Encoding.PEM)

    def is_stale(self, now: datetime | None = None) -> bool:
        """Return whether a newer list is overdue."""
        due = self.crl.next_update_utc
        return due is not None and due < (now or datetime.now(UTC))

    def revoked_at(self, certificate: x509.Certificate) -> datetime | None:
        """Return the revocation time; None if not revoked or of another CA."""
        if certificate.issuer != self.issuer:
            return None
        entry = self.crl.get_revoked_certificate_by_serial_number(certificate.serial_number)
        return None if entry is None else entry.revocation_date_utc

    def check_signature(self, authorities: Iterable[x509.Certificate]) -> None:
        """Refuse a list that none of these CAs signed."""
        for ca in authorities:
            if ca.subject == self.issuer and _may_sign_lists(ca) and _signed(self.crl, ca):
                return
        issuer = self.issuer.rfc4514_string()
        message = f"the revocation list of {issuer!r} was not signed by a trusted CA"
        raise IdentityError("E-IDENTITY-LIST", message)


def looks_like_list(pem: bytes) -> bool:
    return _BEGIN in pem


def parse_lists(pem: bytes, origin: str) -> tuple[RevocationList, ...]:
    """Parse all lists of a PEM text without verification; `origin` names it in messages."""
    lists = []
    for part in pem.split(_BEGIN)[1:]:
        body, end, _ = part.partition(_END)
        try:
            crl = x509.load_pem_x509_crl(_BEGIN + body + end + b"\n")
            number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
            _ = crl.issuer, crl.next_update_utc  # parsed lazily: damaged ones must raise here
        except x509.ExtensionNotFound as error:
            raise IdentityError("E-IDENTITY-LIST", f"a list in {origin} has no number") from error
        except UNREADABLE as error:
            message = f"{origin} contains a damaged revocation list"
            raise IdentityError("E-IDENTITY-FILE", message) from error
        lists.append(RevocationList(crl, number))
    if not lists:
        raise IdentityError("E-IDENTITY-FILE", f"{origin} contains no revocation list")
    return tuple(lists)


def newest(
    held: Sequence[RevocationList], offered: Sequence[RevocationList]
) -> tuple[RevocationList, ...]:
    """Return the newest list of every CA; `held` wins if the numbers are equal."""
    found = {one.issuer.rfc4514_string(): one for one in held}
    for one in offered:
        known = found.get(one.issuer.rfc4514_string())
        if known is None or known.number < one.number:
            found[one.issuer.rfc4514_string()] = one
    return tuple(found.values())


def _may_sign_lists(authority: x509.Certificate) -> bool:
    try:
        return authority.extensions.get_extension_for_class(x509.KeyUsage).value.crl_sign
    except x509.ExtensionNotFound:
        return True  # without the extension, all usages are allowed
    except UNREADABLE:
        return False


def _signed(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    try:
        return crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (InvalidSignature, *UNREADABLE):
        return False
