"""A backup put back: into an empty directory, checked whole before any of it takes its place.

The files are written into `.restoring` inside the directory, which may be the root of a volume, and held against the
digests in the backup; then they are moved, the journal last. A directory without a journal is not a site's yet, so
whatever is interrupted before that has to be begun anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import tarfile
from pathlib import Path
from typing import IO, Final

from fedelmy_node.config.decode import decode
from fedelmy_node.durable import cannot_write, remove_tree, sync_directory
from fedelmy_node.errors import ConfigError, StoreError
from fedelmy_node.store.backup import CONTENTS, FORMAT, JOURNAL, Contents, belongs
from fedelmy_node.store.beside import reading
from fedelmy_node.store.layout import Layout
from fedelmy_node.store.schema import refuse_newer

__all__ = ["read_backup"]

_STAGE: Final = ".restoring"
_NOBODYS: Final = frozenset({_STAGE, "lost+found"})
"""What may be in a directory that is empty: a restore that was interrupted, and what file systems put there."""
_BLOCK_BYTES: Final = 1 << 20
_CONTENTS_BYTES: Final = 64 << 20


def read_backup(file: Path | IO[bytes], root: Path) -> Contents:
    """Restore a state directory from a backup, a file or a pipe; if anything is wrong, the directory stays empty."""
    was_there = root.exists()
    if was_there and any(path.name not in _NOBODYS for path in root.iterdir()):
        raise StoreError("E-BACKUP-TARGET", "the state directory is not empty", private=str(root))
    stage = root / _STAGE
    try:
        Layout(root).create()
        remove_tree(stage)
        contents = _unpack(file, stage)
        if (stage / JOURNAL).exists():
            with reading(stage / JOURNAL) as journal:
                refuse_newer(journal)
        _move(stage, root)
    except (tarfile.TarError, sqlite3.DatabaseError, EOFError, FileExistsError) as error:
        raise _not_one(file, f"{type(error).__name__}: {error}") from error
    except OSError as error:
        raise cannot_write(root, error) from error
    finally:
        remove_tree(stage)
        if not was_there and root.exists() and not any(root.iterdir()):
            root.rmdir()
    return contents


def _unpack(file: Path | IO[bytes], stage: Path) -> Contents:
    """Every member, as a file of its own that nobody else can read, and none that is no part of a backup.

    `belongs` lets no name through that leads elsewhere; tarfile's own filter is not in every Python 3.11.
    """
    stage.mkdir(mode=0o700)
    found: dict[str, str] = {}
    try:
        # One after the other, as a pipe gives them.
        tar = tarfile.open(file, "r:") if isinstance(file, Path) else tarfile.open(fileobj=file, mode="r|")  # noqa: SIM115
    except OSError as error:
        raise _not_one(file, error.strerror or type(error).__name__) from error
    with tar:
        for member in tar:
            if CONTENTS in found:
                raise _not_one(file, f"{member.name} comes after its end")
            if not member.isreg() or not (member.name == CONTENTS or belongs(member.name)):
                raise _not_one(file, f"{member.name} is no file of a backup")
            for parent in reversed(Path(member.name).parents[:-1]):
                (stage / parent).mkdir(mode=0o700, exist_ok=True)
            found[member.name] = _write(tar, member, stage / member.name)
    if CONTENTS not in found:
        raise _not_one(file, "its end is missing")
    contents = _contents(file, stage / CONTENTS)
    del found[CONTENTS]
    if found != contents.files:
        wrong = sorted(name for name in {*found, *contents.files} if found.get(name) != contents.files.get(name))
        raise _not_one(file, f"{wrong[0]} is missing or was changed")
    (stage / CONTENTS).unlink()
    return contents


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> str:
    digest, source = hashlib.sha256(), tar.extractfile(member)
    assert source is not None, "it is a regular file"
    mode = 0o600 | (member.mode & 0o044)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as target:
        while block := source.read(_BLOCK_BYTES):
            digest.update(block)
            target.write(block)
        target.flush()
        os.fchmod(target.fileno(), mode)
        os.fsync(target.fileno())
    return digest.hexdigest()


def _contents(file: Path | IO[bytes], path: Path) -> Contents:
    try:
        if path.stat().st_size > _CONTENTS_BYTES:
            raise ValueError("too large")
        raw = json.loads(path.read_bytes())
        if isinstance(raw, dict) and isinstance(raw.get("format"), int) and raw["format"] > FORMAT:
            message = f"the backup has format {raw['format']}, this software knows {FORMAT}"
            raise StoreError("E-STORE-VERSION", message)
        return decode(Contents, raw)
    except (ValueError, RecursionError, ConfigError) as error:
        raise _not_one(file, f"{CONTENTS} cannot be read: {error}") from error


def _move(stage: Path, root: Path) -> None:
    """Into place: what is synced gets its name, and the journal, which names the rest, comes last."""
    for directory, _, _ in os.walk(stage):
        sync_directory(Path(directory))
    for path in sorted(stage.iterdir(), key=lambda path: path.name == JOURNAL):
        if path.name == JOURNAL:
            sync_directory(root)
        path.rename(root / path.name)
    sync_directory(root)


def _not_one(file: Path | IO[bytes], why: str) -> StoreError:
    name = f"{file}: " if isinstance(file, Path) else ""
    return StoreError("E-BACKUP-FILE", "the file is not a whole backup", private=name + why)
