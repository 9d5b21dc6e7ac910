"""`fedelmy-node backup` and `restore`. Neither needs a daemon."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedelmy_node.cli.app import emit_json
from fedelmy_node.cli.audit import record_locally
from fedelmy_node.cli.options import json_option, state_flag, state_option
from fedelmy_node.domain.errors import ConfigError

if TYPE_CHECKING:
    from fedelmy_node.ops.backup import Contents


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@state_option
@json_option
def backup(file: Path, state: Path, as_json: bool) -> None:
    """Back up everything this site needs to continue elsewhere to FILE, even while it runs.

    A backup contains the key and certificate, site.toml, the journal, the bundles and checkpoints
    of the runs, and the audit log, but no data and no other logs. It is a plain tar file, written
    atomically, and never overwrites an existing file. If FILE is -, it goes to standard output.
    Anyone who has it can impersonate this site: protect it like the key.

    \b
    Examples:
      fedelmy-node backup north.tar
      fedelmy-node backup /backup/north-$(date +%F).tar --json
      fedelmy-node backup - > north.tar
    """
    from fedelmy_node.domain.text import bytes_text
    from fedelmy_node.ops.backup import stream_backup, write_backup

    piped = str(file) == "-"
    if not (state / "journal.db").exists() and not (state / "identity").is_dir():
        message = f"{state} is not the state directory of a site"
        raise ConfigError("E-CONFIG-MISSING", message, hint="Set it with --state.")
    if file.exists() and not piped:
        raise ConfigError("E-CONFIG-VALUE", f"{file} already exists", hint="Choose another name.")
    if piped and sys.stdout.isatty():
        hint = "Redirect it: `backup - > FILE`."
        raise ConfigError("E-CONFIG-VALUE", "a backup cannot go to a terminal", hint=hint)
    record_locally(state, "state-backed-up")  # first, so that the backup contains this entry
    contents = stream_backup(state, sys.stdout.buffer) if piped else write_backup(state, file)
    if as_json:
        about = {"file": str(file), "bytes": contents.size, **_about(contents)}
        click.echo(json.dumps(about), err=piped)
        return
    size = bytes_text(contents.size)
    for line in (
        f"{file}: {_whose(contents.site)}, {_many(contents.runs, 'run')}, {size}",
        f"  line {contents.audit_seq} of the audit log has the hash {contents.audit_sha256}",
        "  It contains the private key: anyone who has this file can impersonate this site.",
    ):
        click.echo(line, err=piped)


@click.command()
@click.argument(
    "file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True, exists=True)
)
@state_option
@json_option
def restore(file: Path, state: Path, as_json: bool) -> None:
    """Restore a site from a backup, FILE or - for standard input; --state must be empty or missing.

    The whole file is verified first. The audit log continues with an entry that has the time of the
    backup; events after that time are lost. Start the node afterwards, and only here: no other
    machine may run this site.

    \b
    Examples:
      fedelmy-node restore north.tar
      fedelmy-node restore /backup/north-2027-03-01.tar --state /var/lib/fedelmy
      fedelmy-node restore - < north.tar
    """
    from fedelmy_node.ops.restore import read_backup

    contents = read_backup(sys.stdin.buffer if str(file) == "-" else file, state)
    taken = f"{datetime.fromtimestamp(contents.taken_at, UTC):%Y-%m-%dT%H:%M:%SZ}"
    record_locally(state, "state-restored", taken_at=taken, version=contents.version)
    if as_json:
        emit_json({"state": str(state), **_about(contents)})
        return
    runs = _many(contents.runs, "run")
    click.echo(f"{state}: {_whose(contents.site)} as of {taken}, {runs}")
    click.echo("  If no other machine runs this site, start it as before:")
    click.echo(f"    fedelmy-node serve{state_flag(state)} ...")


def _about(contents: Contents) -> dict[str, str | int | float]:
    return {
        "site": contents.site,
        "version": contents.version,
        "taken_at": contents.taken_at,
        "runs": contents.runs,
        "files": len(contents.files),
        "audit_line": contents.audit_seq,
        "audit_head": contents.audit_sha256,
    }


def _whose(site: str) -> str:
    return f"site {site}" if site else "a site without an identity"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
