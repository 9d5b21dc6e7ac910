"""A secret of the site, created once, from which the secrets of steps are derived.

A step that is computed again gets the same one, so it gives the same bundle. A run that is accepted
again, after it was pruned or lost, gets others: a mask that serves twice hides nothing, because the
difference of two masked sums is that of the sums. Operators choose all that is in a plan, so the
journal keeps a nonce for every acceptance.
"""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path
from typing import Final

from fedelmy_node.domain.errors import StoreError
from fedelmy_node.domain.names import StepId
from fedelmy_node.store.durable_files import write_durably
from fedelmy_node.store.records import RunRecord

_BYTES: Final = 32


def step_secret(path: Path, record: RunRecord, step: StepId) -> str:
    """The secret of a step of a run, hexadecimal; nobody without the file can compute it."""
    message = f"{record.slice.run} {record.slice.plan_id} {step}"
    if record.nonce:  # older software accepted runs without one; they keep their secrets
        message = f"{record.nonce.hex()} {record.prepared.sha256} {message}"
    return hmac.digest(_site_secret(path), message.encode(), "sha256").hex()


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
