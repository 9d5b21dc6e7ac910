"""Files that survive a power loss, and are there whole or not at all: written beside, synced, renamed."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedelmy_node.errors import StoreError

__all__ = [
    "replacing", "publish", "write_durably", "sync_directory", "remove_tree", "cannot_write", "file_sha256",
    "check_intact",
]  # fmt: skip


@contextmanager
def replacing(path: Path, mode: int = 0o600) -> Iterator[Path]:
    """A name beside `path` to write to; if the block succeeds, that file takes the place of `path`, else it goes.

    The name is always the same, so that what a killed process left behind is overwritten by the next one.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield partial
        descriptor = os.open(partial, os.O_RDONLY)
        try:
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        publish(partial, path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        partial.unlink(missing_ok=True)


def publish(partial: Path, path: Path) -> None:
    """Give a file that is synced its name, for good."""
    partial.replace(path)
    sync_directory(path.parent)


def write_durably(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a whole file; it never has a looser mode than the one it ends with."""
    with replacing(path, mode) as partial:
        partial.write_bytes(data)


def sync_directory(path: Path) -> None:
    """Make a rename or a new name in `path` survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Remove a directory and all that is in it; what is not there, or cannot be removed, is left alone."""
    if path.exists():
        import shutil  # over a megabyte that an idle daemon does not need

        shutil.rmtree(path, ignore_errors=True)


def file_sha256(path: Path) -> str:
    """The digest of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_intact(path: Path, sha256: str, what: str, *, size: int | None = None) -> None:
    """Raise E-STORE-DAMAGED unless a file has the digest that it was journaled with; `what` names it.

    With `size`, that is all that is looked at. OSError: for now it cannot be read, which is no damage.
    """
    problem = ""
    try:
        if size is not None:
            problem = "" if path.stat().st_size == size else "has another size than it was written with"
        elif file_sha256(path) != sha256:
            problem = "has changed since it was written"
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EIO, errno.EISDIR, errno.ENOTDIR):
            raise
        problem = f"cannot be read: {error.strerror}"
    if problem:
        raise StoreError("E-STORE-DAMAGED", f"{what} on this site's own disk {problem}", private=str(path))


def cannot_write(path: Path, error: OSError) -> StoreError:
    """The error of ours for a write that failed: a full disk, or something in the way."""
    code = "E-STORE-DISK" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "E-STORE-UNWRITABLE"
    reason = error.strerror or type(error).__name__
    return StoreError(code, f"a file cannot be written: {reason}", private=str(path))
