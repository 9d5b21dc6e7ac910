"""The books of the federation's CA: what it has signed (issued.jsonl) and what it has revoked (revoked.pem)."""

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
from fedelmy_node.errors import ConfigError, IdentityError, StoreError
from fedelmy_node.identity.files import LIST_BYTES, read_file
from fedelmy_node.identity.requests import Request
from fedelmy_node.identity.revocation import RevocationList, parse_lists

__all__ = ["Issued", "Certified", "Register", "open_register", "read_list", "LIST"]

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
    """Of the certificate, in hexadecimal."""
    not_after: str
    at: str
    """When it was signed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Certified:
    """A certificate that was signed, and what it is worth now."""

    issued: Issued
    state: Literal["valid", "expired", "revoked"]
    days: float
    """Until it expires; negative: it has."""
    revoked_at: str | None
    reason: str | None

    @property
    def fingerprint(self) -> str:
        """Of the key, in the short form that the site knows."""
        digits = self.issued.key.removeprefix("sha256:")[:20].upper()
        return "-".join(digits[i : i + 4] for i in range(0, 20, 4))


class Register:
    """The lines of issued.jsonl, how another one is added, and what the list of revocations says of them."""

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
            raise IdentityError("E-IDENTITY-FILE", f"line {number} of {self._path} is damaged") from error

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
        """Every line, oldest first, and what its certificate is worth now."""
        return tuple(self._certified(line, datetime.now(UTC)) for line in self.lines)

    def _certified(self, line: Issued, now: datetime) -> Certified:
        entry = None
        if self.revocations is not None:
            entry = self.revocations.crl.get_revoked_certificate_by_serial_number(int(line.serial, 16))
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
    """The register, locked: two `sign` at once must not both find a name free."""
    path = directory / _REGISTER
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError("E-STORE-UNWRITABLE", f"{path} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield Register(descriptor, directory)
    finally:
        os.close(descriptor)


def read_list(directory: Path) -> RevocationList | None:
    """The list in force; None: nothing was revoked yet."""
    path = directory / LIST
    return parse_lists(read_file(path, LIST_BYTES), str(path))[0] if path.exists() else None


def _reason(entry: x509.RevokedCertificate) -> str:
    try:
        return entry.extensions.get_extension_for_class(x509.CRLReason).value.reason.name.replace("_", "-")
    except x509.ExtensionNotFound:
        return "unspecified"
