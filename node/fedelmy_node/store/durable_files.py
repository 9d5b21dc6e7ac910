"""Files that survive a power loss and are never half written: write beside, sync, rename."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedelmy_node.domain.errors import StoreError


@contextmanager
def open_descriptor(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path, mode: int = 0o600) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` if the block succeeds.

    The name is always the same, so the next process overwrites what a killed one left behind.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with write_errors(path):
            partial.unlink(missing_ok=True)
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            yield partial
            with open_descriptor(partial, os.O_RDONLY) as descriptor:
                os.fchmod(descriptor, mode)
                os.fsync(descriptor)
            publish(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def publish(partial: Path, path: Path) -> None:
    """Rename a synced file durably."""
    partial.replace(path)
    sync_directory(path.parent)


def write_durably(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a whole file; its mode is never looser than `mode`, not even for a moment."""
    with replacing(path, mode) as partial:
        partial.write_bytes(data)


def sync_directory(path: Path) -> None:
    """Make renames and new names in `path` survive a power loss."""
    with open_descriptor(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


def remove_tree(path: Path) -> None:
    """Remove a directory with all its content; ignore what is missing or cannot be removed."""
    if path.exists():
        import shutil  # over a megabyte that an idle daemon does not need

        shutil.rmtree(path, ignore_errors=True)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_intact(path: Path, sha256: str, what: str, *, size: int | None = None) -> None:
    """Raise E-STORE-DAMAGED unless a file has the journaled digest; `what` names it.

    With `size`, check only the size. An OSError means that the file cannot be read at the moment.
    """
    problem = ""
    try:
        if size is not None:
            problem = "" if path.stat().st_size == size else "has the wrong size"
        elif file_sha256(path) != sha256:
            problem = "has changed since it was written"
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EIO, errno.EISDIR, errno.ENOTDIR):
            raise
        problem = f"cannot be read: {error.strerror}"
    if problem:
        message = f"{what} on this site's own disk {problem}"
        raise StoreError("E-STORE-DAMAGED", message, private=str(path))


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Map every OSError to a StoreError."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> StoreError:
    """Return the error for a failed write: the disk is full, or something else is wrong."""
    code = "E-STORE-DISK" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "E-STORE-UNWRITABLE"
    reason = error.strerror or type(error).__name__
    return StoreError(code, f"a file cannot be written: {reason}", private=str(path))
