"""`fedelmy-node backup` and `restore`: a site in one file, and back. Neither needs a daemon."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedelmy_node.cli.audit import record_locally
from fedelmy_node.cli.frame import emit_json
from fedelmy_node.cli.options import json_option, state_flag, state_option
from fedelmy_node.errors import ConfigError

if TYPE_CHECKING:
    from fedelmy_node.store.backup import Contents

__all__ = ["backup", "restore"]


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@state_option
@json_option
def backup(file: Path, state: Path, as_json: bool) -> None:
    """Write everything that this site needs to go on elsewhere into FILE, while its daemon runs or not.

    In it are key and certificate, site.toml, the journal, the bundles and checkpoints of its runs and the audit log;
    no data, no logs. The file is a plain tar, written whole or not at all, and never over one that exists; - writes to
    the standard output. Whoever has it can pose as this site: keep it as you keep the key.

    \b
    Examples:
      fedelmy-node backup north.tar
      fedelmy-node backup /backup/north-$(date +%F).tar --json
      fedelmy-node backup - > north.tar
    """
    from fedelmy_node.domain.narration import bytes_text
    from fedelmy_node.store.backup import stream_backup, write_backup

    piped = str(file) == "-"
    if not (state / "journal.db").exists() and not (state / "identity").is_dir():
        raise ConfigError("E-CONFIG-MISSING", f"{state} is no state directory of a site", hint="Name it with --state.")
    if file.exists() and not piped:
        raise ConfigError("E-CONFIG-VALUE", f"{file} exists already", hint="Choose another name.")
    if piped and sys.stdout.isatty():
        raise ConfigError("E-CONFIG-VALUE", "a backup cannot be shown", hint="Send it somewhere: `backup - > FILE`.")
    record_locally(state, "state-backed-up")  # before it is done: so it is the last line of the log in the backup
    contents = stream_backup(state, sys.stdout.buffer) if piped else write_backup(state, file)
    if as_json:
        about = {"file": str(file), "bytes": contents.size, **_about(contents)}
        click.echo(json.dumps(about), err=piped)
        return
    size = bytes_text(contents.size)
    for line in (
        f"{file}: {_whose(contents.site)}, {_many(contents.runs, 'run')}, {size}",
        f"  line {contents.audit_seq} of the audit log has the hash {contents.audit_sha256}",
        "  The private key is in it: whoever has this file can pose as this site.",
    ):
        click.echo(line, err=piped)


@click.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path, dir_okay=False, allow_dash=True))
@state_option
@json_option
def restore(file: Path, state: Path, as_json: bool) -> None:
    """Make a site's state directory from a backup, FILE or - for the standard input; --state must be empty or missing.

    The whole file is checked first. The audit log goes on with a line that says from when the backup is; what happened
    between the two is in neither. Start the node afterwards, and only here: no other machine may run this site.

    \b
    Examples:
      fedelmy-node restore north.tar
      fedelmy-node restore /backup/north-2027-03-01.tar --state /var/lib/fedelmy
      fedelmy-node restore - < north.tar
    """
    from fedelmy_node.store.restore import read_backup

    contents = read_backup(sys.stdin.buffer if str(file) == "-" else file, state)
    taken = datetime.fromtimestamp(contents.taken_at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    record_locally(state, "state-restored", taken_at=taken, version=contents.version)
    if as_json:
        emit_json({"state": str(state), **_about(contents)})
        return
    click.echo(f"{state}: {_whose(contents.site)} as it was on {taken}, {_many(contents.runs, 'run')}")
    click.echo("  If no other machine runs this site, start it as before:")
    click.echo(f"    fedelmy-node serve{state_flag(state)} ...")


def _about(contents: Contents) -> dict[str, str | int | float]:
    return {
        "site": contents.site, "version": contents.version, "taken_at": contents.taken_at, "runs": contents.runs,
        "files": len(contents.files), "audit_line": contents.audit_seq, "audit_head": contents.audit_sha256,
    }  # fmt: skip


def _whose(site: str) -> str:
    return f"site {site}" if site else "a site without identity"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
