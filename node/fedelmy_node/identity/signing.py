"""Signatures over what an operator orders, so that sites can check it when the launcher is long gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedelmy_node import CONTRACT
from fedelmy_node.errors import IdentityError
from fedelmy_node.identity.certificates import parse_certificates, public_key
from fedelmy_node.identity.files import CHAIN_BYTES
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.subject import Subject
from fedelmy_node.identity.trust import Trust

__all__ = ["Purpose", "Signature", "check_fits", "sign", "verify", "verify_accepted"]


class Purpose(StrEnum):
    """What a signature is for. It is part of what is signed: one over a plan is worth nothing on a cancel."""

    PLAN = "plan"
    CANCEL = "cancel"


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """A signature that can be checked with nothing but the CAs that the federation trusts."""

    value: bytes = field(repr=False)
    """ECDSA over SHA-256, DER."""
    certificate_pem: bytes = field(repr=False)
    """The signer's, with its intermediates, because the signer need not be reachable."""


def sign(identity: Identity, payload: bytes, *, purpose: Purpose) -> Signature:
    """Sign `payload` for one purpose."""
    key = serialization.load_pem_private_key(identity.key_pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # `load` takes no other kind
    value = key.sign(_message(payload, purpose), ec.ECDSA(hashes.SHA256()))
    return Signature(value=value, certificate_pem=identity.certificate_pem)


def verify(
    payload: bytes, signature: Signature, trust: Trust, *, purpose: Purpose, now: datetime | None = None
) -> Subject:
    """The operator of this federation who signed `payload` for this purpose; anybody else is refused."""
    certificates = _certificates(signature)
    return _signed_by(trust.verify(certificates, now), certificates, payload, signature, purpose)


def verify_accepted(payload: bytes, signature: Signature, trust: Trust, *, purpose: Purpose) -> Subject:
    """The same for what was accepted earlier: a certificate that has expired or was revoked since does no harm."""
    certificates = _certificates(signature)
    return _signed_by(trust.verify_once(certificates), certificates, payload, signature, purpose)


def check_fits(payload: bytes, signature: Signature, *, purpose: Purpose) -> None:
    """Refuse a signature that is not of the certificate beside it, whoever that names."""
    _check(_certificates(signature), payload, signature, purpose, "its certificate")


def _certificates(signature: Signature) -> Sequence[x509.Certificate]:
    if len(signature.certificate_pem) > CHAIN_BYTES:
        raise IdentityError("E-IDENTITY-SIGNATURE", "the certificates of the signature are too large")
    return parse_certificates(signature.certificate_pem, "the signature")


def _signed_by(
    subject: Subject, certificates: Sequence[x509.Certificate], payload: bytes, signature: Signature, purpose: Purpose
) -> Subject:
    if subject.role != "operator":
        raise IdentityError("E-IDENTITY-ROLE", f"a {purpose} must be signed by an operator, not by {subject}")
    _check(certificates, payload, signature, purpose, str(subject))
    return subject


def _check(
    certificates: Sequence[x509.Certificate], payload: bytes, signature: Signature, purpose: Purpose, whose: str
) -> None:
    try:
        public_key(certificates[0]).verify(signature.value, _message(payload, purpose), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise IdentityError("E-IDENTITY-SIGNATURE", f"the signature of {whose} does not fit this {purpose}") from error


def _message(payload: bytes, purpose: Purpose) -> bytes:
    # The zero byte ends the prefix, which has none, so no two (purpose, payload) pairs give the same message.
    return f"{CONTRACT} {purpose}".encode() + b"\0" + payload
