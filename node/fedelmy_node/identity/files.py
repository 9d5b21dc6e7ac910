"""The files of identities on disk: in private directories, and small when read."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fedelmy_node.errors import IdentityError, StoreError

__all__ = ["make_directory", "read_file", "read_private", "locked", "stamp", "CHAIN_BYTES", "LIST_BYTES"]

_LIMIT_BYTES: Final = 64 * 1024
"""No key, request or certificate is nearly as large; whoever passes a model by mistake is told so."""
CHAIN_BYTES: Final = 64 * 1024
"""Of a certificate with its intermediates: ours have about 1 KiB; those of a hospital's CA have more to say."""
LIST_BYTES: Final = 1024 * 1024
"""Revocation lists of large CAs have some ten thousand entries."""


def make_directory(directory: Path, *, private: bool = True) -> None:
    """Make a directory; a private one only this user may enter, even if it was there before."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if private:
            directory.chmod(0o700)
    except OSError as error:
        raise StoreError("E-STORE-UNWRITABLE", f"{directory} cannot be made: {error.strerror}") from error


def read_file(path: Path, limit: int = _LIMIT_BYTES) -> bytes:
    """The bytes of a small file that must exist."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise IdentityError("E-IDENTITY-FILE", f"{path} cannot be read: {error.strerror}") from error
    if len(data) > limit:
        raise IdentityError("E-IDENTITY-FILE", f"{path} is too large to be a key or certificate")
    return data


def read_private(path: Path) -> bytes:
    """The bytes of a private key's file, which nobody but its owner may read."""
    data = read_file(path)
    if path.stat().st_mode & 0o077:
        raise IdentityError(
            "E-IDENTITY-FILE",
            f"{path} can be read by other users",
            hint=f"Run `chmod 600 {path}`; if others may have read it, make a new key and have it signed.",
        )
    return data


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Nobody else changes this identity meanwhile."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def stamp(path: str) -> tuple[int, int]:
    """What changes whenever a file is replaced; the same for all that are not there."""
    try:
        status = os.stat(path)  # noqa: PTH116 - asked at every call, and several times faster
    except OSError:
        return (0, 0)
    return (status.st_ino, status.st_mtime_ns)
