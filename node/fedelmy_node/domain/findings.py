"""What an examination found: one thing looked at in one respect, a verdict, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from fedelmy_node.errors import CATALOGUE, FedelmyError, InternalError

__all__ = ["Verdict", "Finding", "Tell", "worst", "exit_code_of", "RANK"]

Verdict = Literal["ok", "warning", "failure"]
"""ok: nothing to do; warning: it works, but should be seen to; failure: a run would not work."""
RANK: Final[Mapping[str, int]] = {"ok": 0, "warning": 1, "failure": 2}
Tell = Callable[[str], None]
"""Hears what is looked at next, for whoever waits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of a doctor's report."""

    subject: str
    """What was looked at: identity, clock, node, disk, data, device, plan, `peer NAME`, `from here` (an operator)."""
    check: str
    """In which respect, such as `tls`."""
    verdict: Verdict
    message: str
    """What was found. It may leave the site as far as all of `facts` may."""
    code: str = ""
    """Of the catalogue; empty if nothing is wrong."""
    fix: str = ""
    """What to do; never empty unless nothing is wrong."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind the sentence."""
    private: str = ""
    """What is shown on this machine alone: paths, files, addresses of the local network."""

    @classmethod
    def of(cls, error: FedelmyError, subject: str, check: str, verdict: Verdict = "failure") -> Finding:
        """What an error says."""
        return cls(
            subject=subject, check=check, verdict=verdict, message=error.message, code=error.code, fix=error.hint,
            private=error.private,
        )  # fmt: skip

    @property
    def whole(self) -> str:
        """What was found, with what stays on this machine."""
        return f"{self.message} ({self.private})" if self.private else self.message

    def told(self) -> Finding:
        """Without what stays on this machine."""
        return replace(self, private="")


def worst(findings: Iterable[Finding]) -> Verdict:
    """The verdict over all."""
    return max((finding.verdict for finding in findings), key=RANK.__getitem__, default="ok")


def exit_code_of(findings: Iterable[Finding]) -> int:
    """0, warnings or not; else the exit code of the first failure."""
    for finding in findings:
        if finding.verdict == "failure":
            entry = CATALOGUE.get(finding.code)
            return (entry.kind if entry else InternalError).exit_code
    return 0
