"""Findings as messages and back; like `convert`, with bounds: they are another site's words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, cast

from fedelmy_node.config.decode import canonical_json
from fedelmy_node.domain.findings import RANK, Finding, Verdict
from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import PeerError
from fedelmy_node.rpc.bounds import answer, few, label, read_object
from fedelmy_proto.v1 import control_pb2

__all__ = ["findings_to_pb", "findings_from_pb"]

_MAX_FINDINGS: Final = 1000
_MAX_FACTS_BYTES: Final = 16 << 10


def findings_to_pb(findings: Iterable[Finding]) -> list[control_pb2.Finding]:
    """What is private to the site is not sent."""
    return [
        control_pb2.Finding(
            subject=f.subject, check=f.check, verdict=f.verdict, message=f.message, code=f.code, fix=f.fix,
            facts=canonical_json(f.facts),
        )
        for f in findings
    ]  # fmt: skip


@answer
def findings_from_pb(messages: Sequence[control_pb2.Finding]) -> tuple[Finding, ...]:
    few(messages, _MAX_FINDINGS, "findings")
    return tuple(
        Finding(
            subject=label(m.subject), check=label(m.check), verdict=_verdict(m.verdict), message=clean(m.message),
            code=label(m.code), fix=clean(m.fix), facts=read_object(_bounded(m.facts)),
        )
        for m in messages
    )  # fmt: skip


def _verdict(text: str) -> Verdict:
    if text not in RANK:
        raise PeerError("E-PEER-CONTRACT", f"the node reports {label(text)!r}, which this version does not know")
    return cast(Verdict, text)


def _bounded(facts: bytes) -> bytes:
    if len(facts) > _MAX_FACTS_BYTES:
        raise PeerError("E-PEER-PROTOCOL", "the facts of a finding are too long")
    return facts or b"{}"
