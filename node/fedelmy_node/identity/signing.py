"""Signatures over what an operator orders, so that sites can check it when the launcher is long gone."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedelmy_node import CONTRACT
from fedelmy_node.errors import IdentityError
from fedelmy_node.identity.certificates import (
    Subject,
    parse_certificates,
    public_key,
    verify_certificate,
)
from fedelmy_node.identity.keystore import Identity

__all__ = ["Purpose", "Signature", "sign", "verify"]


class Purpose(StrEnum):
    """What a signature is for. It is part of what is signed: one over a plan is worth nothing on a cancel."""

    PLAN = "plan"
    CANCEL = "cancel"


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """A signature that can be checked with nothing but the federation's CA."""

    value: bytes = field(repr=False)
    """ECDSA over SHA-256, DER."""
    certificate_pem: bytes = field(repr=False)
    """The signer's certificate, because the signer need not be reachable."""


def sign(identity: Identity, payload: bytes, *, purpose: Purpose) -> Signature:
    """Sign `payload` for one purpose."""
    key = serialization.load_pem_private_key(identity.key_pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # `load` takes no other kind
    value = key.sign(_message(payload, purpose), ec.ECDSA(hashes.SHA256()))
    return Signature(value=value, certificate_pem=identity.certificate_pem)


def verify(
    payload: bytes, signature: Signature, ca_pem: bytes, *, purpose: Purpose, now: datetime | None = None
) -> Subject:
    """The operator of this federation who signed `payload` for this purpose; anybody else is refused."""
    certificates = parse_certificates(signature.certificate_pem, "the signature")
    if len(certificates) != 1:
        raise IdentityError("E-IDENTITY-SIGNATURE", "a signature carries one certificate")
    (ca,) = parse_certificates(ca_pem, "ca.pem")
    subject = verify_certificate(certificates[0], ca, now)
    if subject.role != "operator":
        raise IdentityError("E-IDENTITY-ROLE", f"a {purpose} must be signed by an operator, not by {subject}")
    try:
        public_key(certificates[0]).verify(signature.value, _message(payload, purpose), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise IdentityError(
            "E-IDENTITY-SIGNATURE", f"the signature of {subject} does not fit this {purpose}"
        ) from error
    return subject


def _message(payload: bytes, purpose: Purpose) -> bytes:
    # The zero byte ends the prefix, which has none, so no two (purpose, payload) pairs give the same message.
    return f"{CONTRACT} {purpose}".encode() + b"\0" + payload
