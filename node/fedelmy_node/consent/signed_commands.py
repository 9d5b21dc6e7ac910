"""Signatures of operators on plans and cancel commands, and the decoding of cancel commands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from fedelmy_node.config.decode import decode, parse_json
from fedelmy_node.domain.errors import ConfigError, RunError
from fedelmy_node.domain.names import RunId, run_id
from fedelmy_node.domain.reports import Signed
from fedelmy_node.domain.text import clean
from fedelmy_node.identity.live_identity import LiveIdentity
from fedelmy_node.identity.signatures import Purpose, Signature, check_fits, verify, verify_accepted
from fedelmy_node.store.run_loader import Verify, nobody

_MAX_CANCEL_BYTES: Final = 8 * 1024
"""A cancel is journaled, and sent to every neighbour with each state change."""


def signer(signed: Signed, identity: LiveIdentity | None, purpose: Purpose) -> str | None:
    """Verify a signature and return its operator; None on a node without identities."""
    if identity is None:
        return None
    signature = Signature(value=signed.signature, certificate_pem=signed.certificate)
    return verify(signed.payload, signature, identity().trust, purpose=purpose).name


def accepted(identity: LiveIdentity | None) -> Verify:
    """Return the check for plans and cancels in the journal, which were valid when accepted."""
    if identity is None:
        return nobody

    def verify(signed: Signed, purpose: Literal["plan", "cancel"], *, over: bool) -> None:
        signature = Signature(value=signed.signature, certificate_pem=signed.certificate)
        if not over:
            verify_accepted(signed.payload, signature, identity().trust, purpose=Purpose(purpose))
        elif signed.certificate:  # a finished run from before the site had an identity has none
            check_fits(signed.payload, signature, purpose=Purpose(purpose))

    return verify


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancel:
    """An operator's signed command to end a run."""

    run: RunId
    reason: str
    withdraw: bool = False
    """End it only if it is not started yet: another site refused it."""
    plan_id: str = ""
    """The plan to end: a cancel of an older plan must not end a newer one of the same name."""
    operator: str = ""
    """The verified signer; never taken from the payload."""

    def __post_init__(self) -> None:
        run_id(self.run)


def decode_cancel(payload: bytes, operator: str = "") -> Cancel:
    """Decode a cancel that `operator` signed."""
    try:
        if len(payload) > _MAX_CANCEL_BYTES:
            raise ValueError(f"{len(payload)} bytes are too many")
        return replace(decode(Cancel, parse_json(payload)), operator=operator)
    except (ValueError, ConfigError) as error:
        message = f"invalid cancel command: {clean(str(error), 300)}"
        raise RunError("E-RUN-PLAN", message) from error
