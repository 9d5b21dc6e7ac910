"""`fedelmy-node audit`: verify and read the audit log. Needs no daemon."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from fedelmy_node.cli.app import emit_json
from fedelmy_node.cli.options import json_option, run_names, state_option
from fedelmy_node.domain.errors import ConfigError, StoreError

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
@click.option(
    "--expect", metavar="HASH", default="", help="A hash that an earlier verification printed."
)
@state_option
@json_option
def verify_log(expect: str, state: Path, as_json: bool) -> None:
    """Verify that no line of the audit log is missing or was changed.

    The hash of the last line covers all lines up to it. Keep it somewhere else: with --expect, it
    proves that nothing up to there was changed or removed since, not even by someone who can write
    these files.

    Exit code 0: intact; 7: damaged, or the expected hash is missing.

    \b
    Examples:
      fedelmy-node audit verify
      fedelmy-node audit verify --expect 5f3c9b0e1d2a4b6c
    """
    from fedelmy_node.store.audit_check import verify

    if expect and (len(expect) < _LEAST_DIGITS or set(expect.lower()) - set("0123456789abcdef")):
        hint = f"Use the hash that `audit verify` printed, or its first {_LEAST_DIGITS} digits."
        raise ConfigError("E-CONFIG-VALUE", "--expect is not a hash", hint=hint)
    found = verify(state, expect)
    problems = list(found.problems)
    if expect and not found.expected:
        problems.append(f"no line has the expected hash {expect}")
    if as_json and not problems:
        emit_json(
            {
                "lines": found.lines,
                "first": found.first_seq,
                "since": found.since,
                "until": found.until,
                "repaired": found.repaired,
                "last": found.head.seq,
                "head": found.head.sha256,
                "expected_found": found.expected if expect else None,
            }
        )
    elif not problems:
        click.echo(f"{found.lines} lines, from {found.since} to {found.until}: intact")
        if found.repaired:
            click.echo(
                f"  {found.repaired} cut off by a crash, each followed by a line that says so"
            )
        if expect:
            click.echo("  the expected hash is present")
        click.echo(f"  line {found.head.seq} has the hash {found.head.sha256}")
        click.echo("  Store this hash elsewhere, and pass it to --expect later.")
    if problems:
        raise StoreError("E-AUDIT-BROKEN", "\n  ".join(["the audit log is damaged:", *problems]))


@audit.command("show")
@click.option("--since", metavar="DURATION", help="Only newer entries, such as 12h or 2d.")
@click.option(
    "--act",
    "acts",
    multiple=True,
    metavar="ACT",
    help="Only this act, such as plan-accepted. Repeatable.",
)
@click.option("--run", "run", metavar="RUN", shell_complete=run_names, help="Only this run.")
@state_option
@json_option
def show_log(
    since: str | None, acts: tuple[str, ...], run: str | None, state: Path, as_json: bool
) -> None:
    """Print the audit log, oldest entries first; --json prints its lines unchanged.

    \b
    Examples:
      fedelmy-node audit show --since 2d
      fedelmy-node audit show --act plan-accepted --act plan-refused
    """
    from fedelmy_node.domain.federation import seconds_of
    from fedelmy_node.store.audit_check import entries

    begin = ""
    if since is not None:
        start = datetime.now(UTC) - timedelta(seconds=seconds_of(since))
        begin = start.isoformat(timespec="milliseconds")
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
    if not found:  # or a mistyped act would look like a quiet week
        click.echo("No matching entries.", err=True)


def record_locally(state: Path, act: str, **facts: str | int) -> None:
    """Record an administrator's act, for commands that need no daemon."""
    from fedelmy_node.store.audit_log import Act, AuditLog

    AuditLog(state).record(Act(act=act, who="administrator", facts=facts))


def audit_line(entry: Mapping[str, Any]) -> str:
    """Format one entry; it is escaped, as the file may have been changed."""
    from fedelmy_node.domain.text import clean

    facts = entry.get("facts")
    about = [str(entry[key]) for key in ("run", "edge", "code") if entry.get(key)]
    about += [f"{key}={value}" for key, value in facts.items()] if isinstance(facts, dict) else []
    moment = str(entry.get("time", "")).replace("T", " ")[:19]
    who = f"{entry.get('who', '')} ({entry.get('from', '')})"
    line = f"{entry['seq']:>6} {moment} {entry['act']:<21} {who} {' '.join(about)}"
    return clean(line, _LINE_CHARACTERS).rstrip()
