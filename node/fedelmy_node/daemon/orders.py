"""What operators order, and who signed it: plans are read by `config.plan_file`, cancels here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from fedelmy_node.config.decode import decode
from fedelmy_node.config.strict_json import parse_json
from fedelmy_node.domain.names import RunId, run_id
from fedelmy_node.domain.reports import Signed
from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import ConfigError, RunError
from fedelmy_node.identity.live import LiveIdentity
from fedelmy_node.identity.signing import Purpose, Signature, check_fits, verify, verify_accepted
from fedelmy_node.store.loading import Verify, nobody

__all__ = ["accepted", "signer", "Cancel", "decode_cancel"]

_MAX_CANCEL_BYTES: Final = 8 * 1024
"""It is journaled, and told to every neighbour whenever anything changes."""


def signer(signed: Signed, identity: LiveIdentity | None, purpose: Purpose) -> str | None:
    """The operator who signed; None on a node that runs without identities (--insecure)."""
    if identity is None:
        return None
    signature = Signature(value=signed.signature, certificate_pem=signed.certificate)
    return verify(signed.payload, signature, identity().trust, purpose=purpose).name


def accepted(identity: LiveIdentity | None) -> Verify:
    """What judges the plans and cancels in the journal, which were accepted when they came."""
    if identity is None:
        return nobody

    def verify(signed: Signed, purpose: Literal["plan", "cancel"], *, over: bool) -> None:
        signature = Signature(value=signed.signature, certificate_pem=signed.certificate)
        if not over:
            verify_accepted(signed.payload, signature, identity().trust, purpose=Purpose(purpose))
        elif signed.certificate:  # a run of a time without identities is over, and nothing comes of it
            check_fits(signed.payload, signature, purpose=Purpose(purpose))

    return verify


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancel:
    """What an operator signs to end a run."""

    run: RunId
    reason: str
    withdraw: bool = False
    """Only if the run is merely prepared: another site refused it, and it will not be started."""
    plan_id: str = ""
    """Of the plan that it ends: a word about an older plan must not end a newer one of the same name."""
    operator: str = ""
    """Whose signature was found under it; what the payload itself says here is not looked at."""

    def __post_init__(self) -> None:
        run_id(self.run)


def decode_cancel(payload: bytes, operator: str = "") -> Cancel:
    """The cancel in a signed payload; `operator`: who signed it."""
    try:
        if len(payload) > _MAX_CANCEL_BYTES:
            raise ValueError(f"{len(payload)} bytes are too many")
        return replace(decode(Cancel, parse_json(payload)), operator=operator)
    except (ValueError, ConfigError) as error:
        raise RunError("E-RUN-PLAN", f"the cancel is not usable: {clean(str(error), 300)}") from error
