"""Revocation lists: standard X.509 CRLs, one per authority, each newer one instead of the one before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from fedelmy_node.errors import IdentityError
from fedelmy_node.identity.certificates import UNREADABLE

__all__ = ["RevocationList", "looks_like_list", "parse_lists", "newest"]

_BEGIN: Final = b"-----BEGIN X509 CRL-----"
_END: Final = b"-----END X509 CRL-----"


@dataclass(frozen=True, slots=True)
class RevocationList:
    """Which certificates of one authority are not to be believed any more."""

    crl: x509.CertificateRevocationList = field(repr=False)
    number: int
    """Grows with every list of the authority."""

    @property
    def issuer(self) -> x509.Name:
        return self.crl.issuer

    @property
    def pem(self) -> bytes:
        return self.crl.public_bytes(serialization.Encoding.PEM)

    def is_stale(self, now: datetime | None = None) -> bool:
        """Whether the authority promised a newer one by now."""
        due = self.crl.next_update_utc
        return due is not None and due < (now or datetime.now(UTC))

    def revoked_at(self, certificate: x509.Certificate) -> datetime | None:
        """Since when a certificate is revoked; None: it is not, or it is another authority's."""
        if certificate.issuer != self.issuer:
            return None
        entry = self.crl.get_revoked_certificate_by_serial_number(certificate.serial_number)
        return None if entry is None else entry.revocation_date_utc

    def check_signature(self, authorities: Iterable[x509.Certificate]) -> None:
        """Refuse a list that none of these signed."""
        for authority in authorities:
            if authority.subject == self.issuer and _may_sign_lists(authority) and _signed(self.crl, authority):
                return
        raise IdentityError(
            "E-IDENTITY-LIST",
            f"the revocation list of {self.issuer.rfc4514_string()!r} was not signed by a CA that is trusted here",
        )


def looks_like_list(pem: bytes) -> bool:
    return _BEGIN in pem


def parse_lists(pem: bytes, origin: str) -> tuple[RevocationList, ...]:
    """All lists of a PEM text, unchecked; `origin` names it in messages."""
    lists = []
    for part in pem.split(_BEGIN)[1:]:
        body, end, _ = part.partition(_END)
        try:
            crl = x509.load_pem_x509_crl(_BEGIN + body + end + b"\n")
            number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
            _ = crl.issuer, crl.next_update_utc  # read only when they are asked for, and damaged ones raise then
        except x509.ExtensionNotFound as error:
            raise IdentityError("E-IDENTITY-LIST", f"a list in {origin} has no number") from error
        except UNREADABLE as error:
            raise IdentityError("E-IDENTITY-FILE", f"{origin} holds a damaged revocation list") from error
        lists.append(RevocationList(crl, number))
    if not lists:
        raise IdentityError("E-IDENTITY-FILE", f"{origin} holds no revocation list")
    return tuple(lists)


def newest(held: Sequence[RevocationList], offered: Sequence[RevocationList]) -> tuple[RevocationList, ...]:
    """Of every authority its newest list; the one that is held stays where both have the same number."""
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
        return True  # without the extension, a key may be used for everything
    except UNREADABLE:
        return False


def _signed(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    try:
        return crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (InvalidSignature, *UNREADABLE):
        return False
