"""`fedelmy-node repair`: diagnose a damaged journal, and continue without it. Needs no daemon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedelmy_node.cli.app import emit_json
from fedelmy_node.cli.audit import record_locally
from fedelmy_node.cli.options import (
    config_option,
    insecure_options,
    json_option,
    state_flag,
    state_option,
)
from fedelmy_node.domain.errors import ConfigError

if TYPE_CHECKING:
    from fedelmy_node.store.salvage import Diagnosis


_DAMAGED_EXIT_CODE = 7


@click.command()
@click.option(
    "--give-up",
    is_flag=True,
    help="Move damaged parts aside, so that the node can start without them.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@state_option
@config_option
@insecure_options
@json_option
def repair(
    give_up: bool,
    yes: bool,
    state: Path,
    config: Path | None,
    insecure: bool,
    site: str | None,
    as_json: bool,
) -> int:
    """Show what is damaged in this site's journal and what would be lost.

    Without --give-up, nothing is changed. Stop the node first. If there is a backup, restore that
    instead: `fedelmy-node restore`.

    With --give-up, this site drops the damaged runs, or all runs if the whole journal is damaged.
    If only the newest entries are lost, the runs are kept in an older state. The journal and the
    files of dropped runs, including results, are moved to a directory in the state directory. Key,
    certificate, settings and audit log are kept. Neighbours treat this site as unreachable in the
    dropped runs, unless the operator repeats the command that created them.

    Exit code 0: intact or repaired; 7: damaged.

    \b
    Examples:
      fedelmy-node repair
      fedelmy-node repair --give-up
      fedelmy-node repair --give-up --yes --json
    """
    from fedelmy_node.config.site_file import Given, load_site_config
    from fedelmy_node.consent.signed_commands import accepted
    from fedelmy_node.identity.live_identity import LiveIdentity
    from fedelmy_node.ops.node_info import site_of
    from fedelmy_node.store.salvage import diagnose
    from fedelmy_node.store.salvage import give_up as put_aside
    from fedelmy_node.store.state_directory import Layout, StateLock

    if as_json and give_up and not yes:
        raise ConfigError("E-CONFIG-VALUE", "--json cannot ask for confirmation", hint="Add --yes.")
    layout = Layout(state)
    if not state.is_dir():
        message = f"{state} is not the state directory of a site"
        raise ConfigError("E-CONFIG-MISSING", message, hint="Set it with --state.")
    known = load_site_config(Given(state=state, config=config, site=site, insecure=insecure))
    identity = None if known.insecure else LiveIdentity(layout.identity, known.trust)
    StateLock.refuse_if_held(layout)
    found = diagnose(layout, site_of(known, identity), accepted(identity))
    if not as_json:
        _show(found)
    aside = None
    if found.damages and give_up:
        if not yes:
            click.confirm("Drop the damaged parts?", abort=True)
        lock = StateLock(layout)
        record_locally(state, "journal-given-up", lost=len(found.lost), kept=len(found.kept))
        aside = put_aside(layout, found)
        lock.release()
    if as_json:
        emit_json(_about(found) | {"aside": str(aside) if aside else None})
    elif aside is not None:
        click.echo(f"The damaged parts are in {aside}; start the node as before:")
        click.echo(f"  fedelmy-node serve{state_flag(state)} ...")
    elif found.damages:
        click.echo("Restore a backup into an empty directory (`fedelmy-node restore`), or run:")
        click.echo(f"  fedelmy-node repair{state_flag(state)} --give-up")
    return 0 if aside is not None or not found.damages else _DAMAGED_EXIT_CODE


def _about(found: Diagnosis) -> dict[str, object]:
    return {
        "whole": not found.damages,
        "damages": [damage.message for damage in found.damages],
        "lost": [{"run": r.run, "state": r.state, "files": r.has_files} for r in found.lost],
        "kept": list(found.kept),
        "old": found.is_old,
    }


def _show(found: Diagnosis) -> None:
    from fedelmy_node.domain.text import clean

    if not found.damages:
        click.echo(f"The journal is intact; it has {len(found.kept)} runs.")
        return
    for damage in found.damages:
        private = f" ({damage.private})" if damage.private else ""
        click.echo(f"  {clean(damage.message + private, 1000)}")
    if found.lost:
        click.echo("With --give-up, this site drops these runs:")
    for lost in found.lost:
        files = "; its files are moved aside" if lost.has_files else ""
        click.echo(f"  {clean(lost.run, 100):<40} {clean(lost.state, 20)}{files}")
    if found.is_old and found.kept:
        click.echo(
            "The newest entries may be lost. These runs are kept, possibly in an older state:"
        )
        for run in found.kept:
            click.echo(f"  {clean(run, 100)}")
    else:
        kept = f"{len(found.kept)} runs"
        click.echo(f"This site keeps {kept}, its identity, its settings and its audit log.")
