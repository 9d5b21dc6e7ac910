"""Restore a backup into an empty directory, after verifying all of it.

The files are written into `.restoring` inside the directory, which may be the root of a volume, and
compared with the digests in the backup. Then they are moved, the journal last: a directory without
a journal does not belong to a site yet, so an interrupted restore must be repeated.
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
from fedelmy_node.domain.errors import ConfigError, StoreError
from fedelmy_node.ops.backup import CONTENTS, FORMAT, JOURNAL, Contents, belongs
from fedelmy_node.store.durable_files import cannot_write, remove_tree, sync_directory
from fedelmy_node.store.readonly_journal import open_readonly
from fedelmy_node.store.schema import refuse_newer
from fedelmy_node.store.state_directory import Layout

_STAGE: Final = ".restoring"
_IGNORED: Final = frozenset({_STAGE, "lost+found"})
"""Entries allowed in an empty directory."""
_BLOCK_BYTES: Final = 1 << 20
_CONTENTS_BYTES: Final = 64 << 20


def read_backup(file: Path | IO[bytes], root: Path) -> Contents:
    """Restore a state directory from a file or pipe; after an error it stays empty."""
    was_there = root.exists()
    if was_there and any(path.name not in _IGNORED for path in root.iterdir()):
        raise StoreError("E-BACKUP-TARGET", "the state directory is not empty", private=str(root))
    stage = root / _STAGE
    try:
        Layout(root).create()
        remove_tree(stage)
        contents = _unpack(file, stage)
        if (stage / JOURNAL).exists():
            with open_readonly(stage / JOURNAL) as journal:
                refuse_newer(journal)
        _move(stage, root)
    except (tarfile.TarError, sqlite3.DatabaseError, EOFError, FileExistsError) as error:
        raise _invalid(file, f"{type(error).__name__}: {error}") from error
    except OSError as error:
        raise cannot_write(root, error) from error
    finally:
        remove_tree(stage)
        if not was_there and root.exists() and not any(root.iterdir()):
            root.rmdir()
    return contents


def _unpack(file: Path | IO[bytes], stage: Path) -> Contents:
    """Extract and verify every member; refuse any that is not part of a backup.

    `belongs` refuses paths that lead elsewhere; not every Python 3.11 has tarfile's own filters.
    """
    stage.mkdir(mode=0o700)
    found: dict[str, str] = {}
    try:
        if isinstance(file, Path):
            tar = tarfile.open(file, "r:")  # noqa: SIM115
        else:
            tar = tarfile.open(fileobj=file, mode="r|")  # noqa: SIM115
    except OSError as error:
        raise _invalid(file, error.strerror or type(error).__name__) from error
    with tar:
        for member in tar:
            if CONTENTS in found:
                raise _invalid(file, f"{member.name} follows its end")
            if not member.isreg() or not (member.name == CONTENTS or belongs(member.name)):
                raise _invalid(file, f"{member.name} is not part of a backup")
            for parent in reversed(Path(member.name).parents[:-1]):
                (stage / parent).mkdir(mode=0o700, exist_ok=True)
            found[member.name] = _write(tar, member, stage / member.name)
    if CONTENTS not in found:
        raise _invalid(file, "its end is missing")
    contents = _contents(file, stage / CONTENTS)
    del found[CONTENTS]
    if found != contents.files:
        wrong = min(name for name, _ in found.items() ^ contents.files.items())
        raise _invalid(file, f"{wrong} is missing or was changed")
    (stage / CONTENTS).unlink()
    return contents


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> str:
    digest, source = hashlib.sha256(), tar.extractfile(member)
    assert source is not None, "only regular files get here"
    mode, flags = 0o600 | (member.mode & 0o044), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as target:
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
            message = f"the backup has format {raw['format']}, but this software supports {FORMAT}"
            raise StoreError("E-STORE-VERSION", message)
        return decode(Contents, raw)
    except (ValueError, RecursionError, ConfigError) as error:
        raise _invalid(file, f"{CONTENTS} cannot be read: {error}") from error


def _move(stage: Path, root: Path) -> None:
    """Move the files into place; the journal, which names the others, comes last."""
    for directory, _, _ in os.walk(stage):
        sync_directory(Path(directory))
    for path in sorted(stage.iterdir(), key=lambda path: path.name == JOURNAL):
        if path.name == JOURNAL:
            sync_directory(root)
        path.rename(root / path.name)
    sync_directory(root)


def _invalid(file: Path | IO[bytes], why: str) -> StoreError:
    name = f"{file}: " if isinstance(file, Path) else ""
    return StoreError("E-BACKUP-FILE", "the file is not a complete backup", private=name + why)
