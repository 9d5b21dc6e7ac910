"""`fedelmy-node audit`: is the audit log whole, and what does it say? Needs no daemon."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from fedelmy_node.cli.frame import emit_json
from fedelmy_node.cli.options import json_option, run_names, state_option
from fedelmy_node.errors import ConfigError, StoreError

__all__ = ["audit", "audit_line", "record_locally"]

_LEAST_DIGITS = 16
_LINE_CHARACTERS = 4000


@click.group()
def audit() -> None:
    """Verify and read the audit log of this node.

    \b
    Examples:
      fedelmy-node audit verify
      fedelmy-node audit show --since 2d
    """


@audit.command("verify")
@click.option("--expect", metavar="HASH", default="", help="A head's hash that was written down earlier.")
@state_option
@json_option
def verify_log(expect: str, state: Path, as_json: bool) -> None:
    """Walk the chain of the audit log: is every line there, and as it was written?

    The last line's hash stands for all lines up to it. Write it down somewhere else; given back with --expect, it
    shows that nothing up to there was changed or cut off since, not even by somebody who can write these files.

    Exit code 0: whole; 7: damaged, or the expected hash is not in it.

    \b
    Examples:
      fedelmy-node audit verify
      fedelmy-node audit verify --expect 5f3c9b0e1d2a4b6c
    """
    from fedelmy_node.store.audit_check import verify

    if expect and (len(expect) < _LEAST_DIGITS or set(expect.lower()) - set("0123456789abcdef")):
        hint = f"Give the hash that `audit verify` printed, or at least its first {_LEAST_DIGITS} digits."
        raise ConfigError("E-CONFIG-VALUE", "--expect is not a hash", hint=hint)
    found = verify(state, expect)
    problems = list(found.problems)
    if expect and not found.expected:
        problems.append(f"no line has the expected hash {expect}")
    if as_json and not problems:
        emit_json({
            "lines": found.lines, "first": found.first_seq, "since": found.since, "until": found.until,
            "repaired": found.repaired, "last": found.head.seq, "head": found.head.sha256,
            "expected_found": found.expected if expect else None,
        })  # fmt: skip
    elif not problems:
        click.echo(f"{found.lines} lines, from {found.since} to {found.until}: whole")
        if found.repaired:
            click.echo(f"  {found.repaired} of them torn by a crash, and closed by a line that says so")
        if expect:
            click.echo("  the expected hash is one of them")
        click.echo(f"  line {found.head.seq} has the hash {found.head.sha256}")
        click.echo("  Write this hash down elsewhere, for --expect.")
    if problems:
        raise StoreError("E-AUDIT-BROKEN", "\n  ".join(["the audit log is not whole:", *problems]))


@audit.command("show")
@click.option("--since", metavar="DURATION", help="Only what is younger, as 12h or 2d.")
@click.option("--act", "acts", multiple=True, metavar="ACT", help="Only such acts, as plan-accepted. Repeatable.")
@click.option("--run", "run", metavar="RUN", shell_complete=run_names, help="Only what concerns this run.")
@state_option
@json_option
def show_log(since: str | None, acts: tuple[str, ...], run: str | None, state: Path, as_json: bool) -> None:
    """What the audit log says, oldest first; --json: its lines as they are.

    \b
    Examples:
      fedelmy-node audit show --since 2d
      fedelmy-node audit show --act plan-accepted --act plan-refused
    """
    from fedelmy_node.domain.federation import seconds_of
    from fedelmy_node.store.audit_check import entries

    begin = ""
    if since is not None:
        begin = (datetime.now(UTC) - timedelta(seconds=seconds_of(since))).isoformat(timespec="milliseconds")
    found = False
    for entry in entries(state):
        if str(entry.get("time", "")) < begin or (acts and entry["act"] not in acts):
            continue
        if run is not None and entry.get("run") != run:
            continue
        found = True
        if as_json:
            emit_json(entry)
        else:
            click.echo(audit_line(entry))
    if not found:  # a mistyped act looks like a quiet week
        click.echo("No line of the audit log fits.", err=True)


def record_locally(state: Path, act: str, **facts: str | int) -> None:
    """For commands that need no daemon: write an administrator's act down."""
    from fedelmy_node.store.audit import Act, AuditLog

    AuditLog(state).record(Act(act=act, who="administrator", facts=facts))


def audit_line(entry: Mapping[str, Any]) -> str:
    """One line of the log, for people; whoever changed the file may have written anything."""
    from fedelmy_node.domain.texts import clean

    facts = entry.get("facts")
    about = [str(entry[key]) for key in ("run", "edge", "code") if entry.get(key)]
    about += [f"{key}={value}" for key, value in facts.items()] if isinstance(facts, dict) else []
    moment = str(entry.get("time", "")).replace("T", " ")[:19]
    who = f"{entry.get('who', '')} ({entry.get('from', '')})"
    return clean(f"{entry['seq']:>6} {moment} {entry['act']:<21} {who} {' '.join(about)}", _LINE_CHARACTERS).rstrip()
