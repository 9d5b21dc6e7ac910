"""A secret of the site, created once, from which the secrets of steps are derived.

A step that is computed again gets the same one, so it gives the same bundle.
"""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path
from typing import Final

from fedelmy_node.domain.errors import StoreError
from fedelmy_node.domain.names import RunId, StepId
from fedelmy_node.store.durable_files import write_durably

_BYTES: Final = 32


def step_secret(path: Path, run: RunId, plan_id: str, step: StepId) -> str:
    """The secret of a step of a plan, hexadecimal; nobody without the file can compute it."""
    return hmac.digest(_site_secret(path), f"{run} {plan_id} {step}".encode(), "sha256").hex()


def _site_secret(path: Path) -> bytes:
    try:
        known = path.read_bytes()
    except FileNotFoundError:
        known = secrets.token_bytes(_BYTES)
        write_durably(path, known)
    if len(known) != _BYTES:
        message = "this site's secret file has the wrong size"
        raise StoreError("E-STORE-DAMAGED", message, private=str(path))
    return known
