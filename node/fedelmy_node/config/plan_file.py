"""A site's signed slice of a plan: parsing, and plan files for sites that cannot be called.

The file contains the signed bytes as text, so that the site's administrator can read them.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedelmy_node import CONTRACT
from fedelmy_node.config.decode import canonical_json, decode, parse_json
from fedelmy_node.domain.errors import ConfigError, PeerError, RunError
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.reports import Signed
from fedelmy_node.domain.text import clean

_MAX_BYTES: Final = 8 << 20
"""Messages have at most 4 MiB; in the file, the quotes of the plan's JSON are escaped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    fedelmy_plan: int
    """Version of the file format."""
    plan: str
    """The signed bytes, as text: canonical JSON."""
    signature: str
    """In base64; empty between --insecure nodes."""
    certificate: str
    """The operator's, PEM."""


def plan_file_of(signed: Signed) -> bytes:
    """Return the content of a plan file."""
    signature = base64.b64encode(signed.signature).decode()
    plan, certificate = signed.payload.decode(), signed.certificate.decode()
    return canonical_json(
        _File(fedelmy_plan=1, plan=plan, signature=signature, certificate=certificate)
    )


def read_plan_file(path: Path) -> Signed:
    """Read a plan file; the node verifies the signature and the site."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        hint = "Pass the file that the operator sent for this site."
        message = f"cannot read {path}: {error.strerror}"
        raise ConfigError("E-CONFIG-MISSING", message, hint=hint) from error
    try:
        if len(data) > _MAX_BYTES:
            raise ValueError("it is too long")
        found = decode(_File, parse_json(data))
        if found.fedelmy_plan != 1:
            raise ValueError(f"it has format {found.fedelmy_plan}, but this version reads format 1")
        signature = base64.b64decode(found.signature, validate=True)
        plan, certificate = found.plan.encode(), found.certificate.encode()
        return Signed(payload=plan, signature=signature, certificate=certificate)
    except (ValueError, ConfigError, binascii.Error) as error:
        hint = "Ask the operator for the file that `fedelmy-launch plan --out` wrote for this site."
        reason = clean(error.message if isinstance(error, ConfigError) else str(error), 200)
        raise RunError("E-RUN-PLAN", f"{path} is not a plan file: {reason}", hint=hint) from error


def read_slice(payload: bytes) -> Slice:
    """Decode a signed slice; another contract is refused before the content is decoded."""
    try:
        raw = parse_json(payload)
    except ValueError as error:
        message = f"the plan is not valid JSON: {clean(str(error), 200)}"
        raise RunError("E-RUN-PLAN", message) from error
    if not isinstance(raw, dict):
        raise RunError("E-RUN-PLAN", "the plan is not a JSON object")
    if raw.get("contract") != CONTRACT:
        found = clean(str(raw.get("contract")), 80)
        message = f"the plan uses contract {found!r}, but this node uses {CONTRACT!r}"
        raise PeerError("E-PEER-CONTRACT", message)
    try:
        return decode(Slice, raw)
    except (ConfigError, PeerError) as error:
        raise RunError("E-RUN-PLAN", f"invalid plan: {error.message}") from error
