"""Format the findings of checks for people and as JSON; shared with the launcher."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import click

from fedelmy_node.domain.reports import Finding

_COLOURS: Final = {"ok": "green", "warning": "yellow", "failure": "red"}
_MARK: Final = 9
_CHECK: Final = 13
_NARROWEST: Final = 60


def finding_lines(finding: Finding, indent: int = 2, label: str = "") -> Iterator[str]:
    """Format one finding; a warning or failure is followed by its code and fix."""
    verdict = finding.verdict
    mark = click.style(f"{verdict:<{_MARK}}", fg=_COLOURS[verdict], bold=verdict != "ok")
    aside = 0 if label else _CHECK
    begin, hang = " " * indent, " " * (indent + _MARK + aside)
    first, *others = wrapped(f"{label} {finding.whole}" if label else finding.whole, len(hang))
    yield f"{begin}{mark}{'' if label else f'{finding.check:<{_CHECK - 1}} '}{first}"
    yield from (f"{hang}{line}" for line in others)
    if finding.verdict != "ok":
        fix = f"{finding.code}: {finding.fix}" if finding.code else finding.fix
        yield from (f"{hang}{line}" for line in wrapped(fix, len(hang)))


def summary_line(findings: Iterable[Finding]) -> str:
    """Count the findings by verdict."""
    counts: Counter[str] = Counter(finding.verdict for finding in findings)
    parts = [f"{counts['ok']} ok"]
    for verdict, plural in (("warning", "warnings"), ("failure", "failures")):
        if counts[verdict]:
            text = f"{counts[verdict]} {verdict if counts[verdict] == 1 else plural}"
            parts.append(click.style(text, fg=_COLOURS[verdict], bold=True))
    return ", ".join(parts)


def finding_json(finding: Finding) -> dict[str, Any]:
    """Encode a finding with its private part, for use on this machine."""
    names = ("subject", "check", "verdict", "message", "code", "fix")
    encoded = {name: getattr(finding, name) for name in names}
    return encoded | {"facts": dict(finding.facts), "private": finding.private}


def wrapped(text: str, indent: int) -> list[str]:
    """Wrap to the terminal's width; in a pipe, where people grep, keep one line."""
    if not sys.stdout.isatty():
        return [text]
    width = max(shutil.get_terminal_size().columns, _NARROWEST)
    return textwrap.wrap(text, width - indent, break_on_hyphens=False) or [""]
