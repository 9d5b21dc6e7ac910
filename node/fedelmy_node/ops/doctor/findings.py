"""Shorthands for findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedelmy_node.domain.reports import Finding, Verdict


def ok(
    subject: str,
    check: str,
    message: str,
    facts: Mapping[str, Any] | None = None,
    private: str = "",
) -> Finding:
    more: dict[str, Any] = {"facts": facts or {}, "private": private}
    return Finding(subject=subject, check=check, verdict="ok", message=message, **more)


def problem(subject: str, check: str, code: str, message: str, fix: str, **more: Any) -> Finding:
    """Return a warning, unless `more` has another verdict."""
    verdict: Verdict = more.pop("verdict", "warning")
    return Finding(
        subject=subject, check=check, verdict=verdict, message=message, code=code, fix=fix, **more
    )
