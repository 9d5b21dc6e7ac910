"""Private keys and other small files of an identity, in private directories."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedelmy_node.domain.errors import IdentityError, StoreError

_LIMIT_BYTES: Final = 64 * 1024
"""Far above any key, request or certificate; catches a model passed by mistake."""
CHAIN_BYTES: Final = 64 * 1024
"""Limit of a certificate with its intermediates; ours have about 1 KiB."""
LIST_BYTES: Final = 1024 * 1024
"""Revocation lists of large CAs have tens of thousands of entries."""


def make_directory(directory: Path, *, private: bool = True) -> None:
    """Create a directory; make a private one accessible to this user only."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if private:
            directory.chmod(0o700)
    except OSError as error:
        message = f"cannot create {directory}: {error.strerror}"
        raise StoreError("E-STORE-UNWRITABLE", message) from error


def read_file(path: Path, limit: int = _LIMIT_BYTES) -> bytes:
    """Read a small file."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise IdentityError("E-IDENTITY-FILE", f"cannot read {path}: {error.strerror}") from error
    if len(data) > limit:
        raise IdentityError("E-IDENTITY-FILE", f"{path} is too large to be a key or certificate")
    return data


def read_private(path: Path) -> bytes:
    """Read a private file; refuse one that other users can read."""
    data = read_file(path)
    if path.stat().st_mode & 0o077:
        hint = f"Run `chmod 600 {path}`; if others may have read it, replace the key."
        raise IdentityError("E-IDENTITY-FILE", f"{path} can be read by other users", hint=hint)
    return data


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold an exclusive lock on an identity."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def stamp(path: str) -> tuple[int, int]:
    """Return a value that changes whenever a file is replaced; constant for missing files."""
    try:
        status = os.stat(path)  # noqa: PTH116 - called often, and several times faster
    except OSError:
        return (0, 0)
    return (status.st_ino, status.st_mtime_ns)


def encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return PEM without a passphrase: daemons start unattended; the file mode protects the key."""
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, encryption)


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a private key file."""
    return parse_key(read_private(path), path)


def parse_key(pem: bytes, path: Path) -> ec.EllipticCurvePrivateKey:
    """Parse a PEM private key; `path` names it in messages."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise IdentityError("E-IDENTITY-FILE", f"{path} is not a fedelmy private key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("E-IDENTITY-FILE", f"{path} is not an ECDSA P-256 key")
    return key
