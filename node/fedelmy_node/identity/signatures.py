"""Signatures of operators over plans and cancellations, verifiable without the launcher."""

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
from fedelmy_node.domain.errors import IdentityError
from fedelmy_node.domain.subject import Subject
from fedelmy_node.identity.certificates import parse_certificates, public_key
from fedelmy_node.identity.keys import CHAIN_BYTES
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.trust import Trust


class Purpose(StrEnum):
    """What was signed; part of the signed bytes, so a plan's signature is invalid for a cancel."""

    PLAN = "plan"
    CANCEL = "cancel"


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """A signature that can be verified with the federation's CAs alone."""

    value: bytes = field(repr=False)
    """ECDSA over SHA-256, DER."""
    certificate_pem: bytes = field(repr=False)
    """The signer's certificate with its intermediates."""


def sign(identity: Identity, payload: bytes, *, purpose: Purpose) -> Signature:
    """Sign `payload` for one purpose."""
    key = serialization.load_pem_private_key(identity.key_pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # `load` accepts no other kind
    value = key.sign(_message(payload, purpose), ec.ECDSA(hashes.SHA256()))
    return Signature(value=value, certificate_pem=identity.certificate_pem)


def verify(
    payload: bytes,
    signature: Signature,
    trust: Trust,
    *,
    purpose: Purpose,
    now: datetime | None = None,
) -> Subject:
    """Return the operator who signed `payload`; refuse anyone else."""
    chain = _certificates(signature)
    return _signed_by(trust.verify(chain, now), chain[0], payload, signature, purpose)


def verify_accepted(
    payload: bytes, signature: Signature, trust: Trust, *, purpose: Purpose
) -> Subject:
    """Like `verify`, but for an earlier acceptance: later expiry or revocation is ignored."""
    chain = _certificates(signature)
    return _signed_by(trust.verify_once(chain), chain[0], payload, signature, purpose)


def check_fits(payload: bytes, signature: Signature, *, purpose: Purpose) -> None:
    """Refuse a signature that does not match its own certificate, trusted or not."""
    if not _matches(_certificates(signature)[0], payload, signature, purpose):
        raise _mismatch("its certificate", purpose)


def _certificates(signature: Signature) -> Sequence[x509.Certificate]:
    if len(signature.certificate_pem) > CHAIN_BYTES:
        message = "the certificates of the signature are too large"
        raise IdentityError("E-IDENTITY-SIGNATURE", message)
    return parse_certificates(signature.certificate_pem, "the signature")


def _signed_by(
    subject: Subject, leaf: x509.Certificate, payload: bytes, signature: Signature, purpose: Purpose
) -> Subject:
    if subject.role != "operator":
        message = f"a {purpose} must be signed by an operator, not by {subject}"
        raise IdentityError("E-IDENTITY-ROLE", message)
    if not _matches(leaf, payload, signature, purpose):
        raise _mismatch(str(subject), purpose)
    return subject


def _matches(
    leaf: x509.Certificate, payload: bytes, signature: Signature, purpose: Purpose
) -> bool:
    key, message = public_key(leaf), _message(payload, purpose)
    try:
        key.verify(signature.value, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def _mismatch(signer: str, purpose: Purpose) -> IdentityError:
    message = f"the signature of {signer} does not match this {purpose}"
    return IdentityError("E-IDENTITY-SIGNATURE", message)


def _message(payload: bytes, purpose: Purpose) -> bytes:
    # The zero byte cannot occur in the prefix, so no two (purpose, payload) pairs are equal.
    return f"{CONTRACT} {purpose}".encode() + b"\0" + payload
