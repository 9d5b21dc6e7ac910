"""Private keys as files: ECDSA P-256, PEM, readable by their owner alone."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedelmy_node.errors import IdentityError
from fedelmy_node.identity.files import read_private

__all__ = ["encode_key", "read_key", "parse_key"]


def encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """PEM without a passphrase: a daemon starts unattended, and the file's mode is what protects it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The private key in a file that only its owner may read."""
    return parse_key(read_private(path), path)


def parse_key(pem: bytes, path: Path) -> ec.EllipticCurvePrivateKey:
    """The private key of a PEM text; `path` names it in messages."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise IdentityError("E-IDENTITY-FILE", f"{path} is not a private key of this software") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("E-IDENTITY-FILE", f"{path} is not an ECDSA P-256 key")
    return key
