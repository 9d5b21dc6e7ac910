"""The register of the CA: issued certificates (issued.jsonl) and revoked ones (revoked.pem)."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

from cryptography import x509

from fedelmy_node.config.decode import canonical_json, decode
from fedelmy_node.domain.errors import ConfigError, IdentityError, StoreError
from fedelmy_node.identity.keys import LIST_BYTES, read_file
from fedelmy_node.identity.requests import Request
from fedelmy_node.identity.revocation_list import RevocationList, parse_lists

_REGISTER: Final = "issued.jsonl"
LIST: Final = "revoked.pem"


@dataclass(frozen=True, kw_only=True, slots=True)
class Issued:
    """One line of the register."""

    name: str
    role: str
    key: str
    """SHA-256 of the public key."""
    serial: str
    """In hexadecimal."""
    not_after: str
    at: str
    """The time of signing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Certified:
    """An issued certificate and its current state."""

    issued: Issued
    state: Literal["valid", "expired", "revoked"]
    days: float
    """Until it expires; negative once it has."""
    revoked_at: str | None
    reason: str | None

    @property
    def fingerprint(self) -> str:
        """The key's fingerprint in the short form that is shown at the site."""
        digits = self.issued.key.removeprefix("sha256:")[:20].upper()
        return "-".join(digits[i : i + 4] for i in range(0, 20, 4))


class Register:
    """issued.jsonl together with the revocation list."""

    def __init__(self, descriptor: int, directory: Path) -> None:
        self._descriptor = descriptor
        self._path = directory / _REGISTER
        with os.fdopen(os.dup(descriptor), "rb") as file:
            self.lines = [self._parse(number, line) for number, line in enumerate(file, 1)]
        self.revocations = read_list(directory)

    def _parse(self, number: int, line: bytes) -> Issued:
        try:
            value: Any = json.loads(line)
            return decode(Issued, value)
        except (ValueError, ConfigError) as error:
            message = f"line {number} of {self._path} is damaged"
            raise IdentityError("E-IDENTITY-FILE", message) from error

    def append(self, leaf: x509.Certificate, request: Request) -> None:
        line = Issued(
            name=request.subject.name,
            role=request.subject.role,
            key=request.full_fingerprint,
            serial=f"{leaf.serial_number:x}",
            not_after=leaf.not_valid_after_utc.isoformat(),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        os.write(self._descriptor, canonical_json(line) + b"\n")
        os.fsync(self._descriptor)

    def certified(self) -> tuple[Certified, ...]:
        """Every issued certificate with its current state, oldest first."""
        return tuple(self._certified(line, datetime.now(UTC)) for line in self.lines)

    def _certified(self, line: Issued, now: datetime) -> Certified:
        crl = self.revocations.crl if self.revocations else None
        entry = crl.get_revoked_certificate_by_serial_number(int(line.serial, 16)) if crl else None
        days = (datetime.fromisoformat(line.not_after) - now) / timedelta(days=1)
        return Certified(
            issued=line,
            state="revoked" if entry is not None else "valid" if days > 0 else "expired",
            days=days,
            revoked_at=None if entry is None else entry.revocation_date_utc.isoformat(),
            reason=None if entry is None else _reason(entry),
        )


@contextmanager
def open_register(directory: Path) -> Iterator[Register]:
    """Open the register, locked: two concurrent `sign` must not both find a name free."""
    path = directory / _REGISTER
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}"
        raise StoreError("E-STORE-UNWRITABLE", message) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield Register(descriptor, directory)
    finally:
        os.close(descriptor)


def read_list(directory: Path) -> RevocationList | None:
    """The current revocation list; None if nothing was revoked yet."""
    path = directory / LIST
    return parse_lists(read_file(path, LIST_BYTES), str(path))[0] if path.exists() else None


def _reason(entry: x509.RevokedCertificate) -> str:
    try:
        reason = entry.extensions.get_extension_for_class(x509.CRLReason).value.reason
        return reason.name.replace("_", "-")
    except x509.ExtensionNotFound:
        return "unspecified"
