"""Findings as lines for people: a mark, what was found, and what to do about it; shared with the launcher."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import click

from fedelmy_node.domain.findings import Finding

__all__ = ["finding_lines", "summary_line", "finding_json", "wrapped"]

_COLOURS: Final = {"ok": "green", "warning": "yellow", "failure": "red"}
_MARK: Final = 9
_CHECK: Final = 13
_NARROWEST: Final = 60


def finding_lines(finding: Finding, indent: int = 2, label: str = "") -> Iterator[str]:
    """One finding: its line, and for anything but ok its code and the fix below it."""
    mark = click.style(f"{finding.verdict:<{_MARK}}", fg=_COLOURS[finding.verdict], bold=finding.verdict != "ok")
    aside = 0 if label else _CHECK
    begin, hang = " " * indent, " " * (indent + _MARK + aside)
    first, *others = wrapped(f"{label} {finding.whole}" if label else finding.whole, len(hang))
    yield f"{begin}{mark}{'' if label else f'{finding.check:<{_CHECK - 1}} '}{first}"
    yield from (f"{hang}{line}" for line in others)
    if finding.verdict != "ok":
        fix = f"{finding.code}: {finding.fix}" if finding.code else finding.fix
        yield from (f"{hang}{line}" for line in wrapped(fix, len(hang)))


def summary_line(findings: Iterable[Finding]) -> str:
    """How many of which."""
    counts: Counter[str] = Counter(finding.verdict for finding in findings)
    parts = [f"{counts['ok']} ok"]
    for verdict, plural in (("warning", "warnings"), ("failure", "failures")):
        if counts[verdict]:
            text = f"{counts[verdict]} {verdict if counts[verdict] == 1 else plural}"
            parts.append(click.style(text, fg=_COLOURS[verdict], bold=True))
    return ", ".join(parts)


def finding_json(finding: Finding) -> dict[str, Any]:
    """For machines; on this machine with what stays here."""
    return {
        "subject": finding.subject, "check": finding.check, "verdict": finding.verdict, "message": finding.message,
        "code": finding.code, "fix": finding.fix, "facts": dict(finding.facts), "private": finding.private,
    }  # fmt: skip


def wrapped(text: str, indent: int) -> list[str]:
    """To the terminal's width; in a pipe, where people search for words, a line stays a line."""
    if not sys.stdout.isatty():
        return [text]
    width = max(shutil.get_terminal_size().columns, _NARROWEST)
    return textwrap.wrap(text, width - indent, break_on_hyphens=False) or [""]
