"""A site's part of a plan as it is signed; and as a file, for sites that cannot be called or want it so.

What is signed stands in the file as text, so that whoever is asked to accept it can read it.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedelmy_node import CONTRACT
from fedelmy_node.config.decode import canonical_json, decode
from fedelmy_node.config.strict_json import parse_json
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.reports import Signed
from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import ConfigError, PeerError, RunError

__all__ = ["plan_file_of", "read_plan_file", "read_slice"]

_MAX_BYTES: Final = 8 << 20
"""A message of the wire has 4 MiB; quotes of the plan's JSON are escaped once more in the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    fedelmy_plan: int
    """Version of this form."""
    plan: str
    """The signed bytes, as text: canonical JSON."""
    signature: str
    """In base64; empty between --insecure nodes."""
    certificate: str
    """The operator's, PEM."""


def plan_file_of(signed: Signed) -> bytes:
    """What a plan file has in it."""
    return canonical_json(
        _File(
            fedelmy_plan=1,
            plan=signed.payload.decode(),
            signature=base64.b64encode(signed.signature).decode(),
            certificate=signed.certificate.decode(),
        )
    )


def read_plan_file(path: Path) -> Signed:
    """What an operator signed; who that was, and whether it is for this site, the node finds out."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise ConfigError(
            "E-CONFIG-MISSING", message, hint="Name the file that the operator sent for this site."
        ) from error
    try:
        if len(data) > _MAX_BYTES:
            raise ValueError("it is too long")
        found = decode(_File, parse_json(data))
        if found.fedelmy_plan != 1:
            raise ValueError(f"it has form {found.fedelmy_plan}, this version reads form 1")
        signature = base64.b64decode(found.signature, validate=True)
        return Signed(payload=found.plan.encode(), signature=signature, certificate=found.certificate.encode())
    except (ValueError, ConfigError, binascii.Error) as error:
        hint = "Ask the operator for the file that `fedelmy-launch plan --out` wrote for this site."
        reason = error.message if isinstance(error, ConfigError) else str(error)
        raise RunError("E-RUN-PLAN", f"{path} is no plan file: {clean(reason, 200)}", hint=hint) from error


def read_slice(payload: bytes) -> Slice:
    """The slice in a signed payload; a plan of another contract is refused by name, before its content is looked at."""
    try:
        raw = parse_json(payload)
    except ValueError as error:
        raise RunError("E-RUN-PLAN", f"the plan is not JSON that can be used: {clean(str(error), 200)}") from error
    if not isinstance(raw, dict):
        raise RunError("E-RUN-PLAN", "the plan is not a JSON object")
    if raw.get("contract") != CONTRACT:
        spoken = clean(str(raw.get("contract")), 80)
        raise PeerError("E-PEER-CONTRACT", f"the plan speaks contract {spoken!r}, this node speaks {CONTRACT!r}")
    try:
        return decode(Slice, raw)
    except (ConfigError, PeerError) as error:
        raise RunError("E-RUN-PLAN", f"the plan is not usable: {error.message}") from error
