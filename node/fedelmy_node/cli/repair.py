"""`fedelmy-node repair`: what is wrong with the journal, and how to go on without what is damaged. Needs no daemon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedelmy_node.cli.audit import record_locally
from fedelmy_node.cli.frame import emit_json
from fedelmy_node.cli.options import config_option, insecure_options, json_option, state_flag, state_option
from fedelmy_node.errors import ConfigError

if TYPE_CHECKING:
    from fedelmy_node.store.salvage import Diagnosis

__all__ = ["repair"]

_DAMAGED_EXIT_CODE = 7


@click.command()
@click.option("--give-up", is_flag=True, help="Put aside what is damaged, so that the node can start without it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@state_option
@config_option
@insecure_options
@json_option
def repair(
    give_up: bool, yes: bool, state: Path, config: Path | None, insecure: bool, site: str | None, as_json: bool
) -> int:
    """Say what is wrong with this site's journal, and what is lost without it; --give-up goes on without it.

    Nothing is changed without --give-up. A backup is better, if there is one: `fedelmy-node restore`. Stop the node
    first.

    With --give-up, this site forgets the runs that are damaged; if the journal as a whole is damaged, all of them; if
    only its newest entries are lost, the runs stay in an older state. Journal and files of these runs are moved to a
    directory in the state directory, results among them; key, certificate, settings and audit log stay. Neighbours that
    wait for a run which this site has forgotten do what the plan says of sites that are out of reach, unless the
    operator repeats the command that made it.

    Exit code 0: whole, or repaired; 7: damaged.

    \b
    Examples:
      fedelmy-node repair
      fedelmy-node repair --give-up
      fedelmy-node repair --give-up --yes --json
    """
    from fedelmy_node.config.site import Given, load_site_config
    from fedelmy_node.daemon.about import site_of
    from fedelmy_node.daemon.orders import accepted
    from fedelmy_node.identity.live import LiveIdentity
    from fedelmy_node.store.layout import Layout, StateLock
    from fedelmy_node.store.salvage import diagnose
    from fedelmy_node.store.salvage import give_up as put_aside

    if as_json and give_up and not yes:
        raise ConfigError("E-CONFIG-VALUE", "--json does not ask", hint="Add --yes.")
    layout = Layout(state)
    if not state.is_dir():
        raise ConfigError("E-CONFIG-MISSING", f"{state} is no state directory of a site", hint="Name it with --state.")
    known = load_site_config(Given(state=state, config=config, site=site, insecure=insecure))
    identity = None if known.insecure else LiveIdentity(layout.identity, known.trust)
    StateLock.refuse_if_held(layout)
    found = diagnose(layout, site_of(known, identity), accepted(identity))
    if not as_json:
        _show(found)
    aside = None
    if found.damages and give_up:
        if not yes:
            click.confirm("Give up what is damaged?", abort=True)
        lock = StateLock(layout)
        record_locally(state, "journal-given-up", lost=len(found.lost), kept=len(found.kept))
        aside = put_aside(layout, found)
        lock.release()
    if as_json:
        emit_json(_about(found) | {"aside": str(aside) if aside else None})
    elif aside is not None:
        click.echo(f"What was given up is in {aside}; start the node as before:")
        click.echo(f"  fedelmy-node serve{state_flag(state)} ...")
    elif found.damages:
        click.echo("Restore a backup into an empty directory (`fedelmy-node restore`), or go on without:")
        click.echo(f"  fedelmy-node repair{state_flag(state)} --give-up")
    return 0 if aside is not None or not found.damages else _DAMAGED_EXIT_CODE


def _about(found: Diagnosis) -> dict[str, object]:
    return {
        "whole": not found.damages,
        "damages": [damage.message for damage in found.damages],
        "lost": [{"run": lost.run, "state": lost.state, "files": lost.has_files} for lost in found.lost],
        "kept": list(found.kept),
        "old": found.is_old,
    }


def _show(found: Diagnosis) -> None:
    from fedelmy_node.domain.texts import clean

    if not found.damages:
        click.echo(f"The journal is whole; it knows {len(found.kept)} runs.")
        return
    for damage in found.damages:
        private = f" ({damage.private})" if damage.private else ""
        click.echo(f"  {clean(damage.message + private, 1000)}")
    if found.lost:
        click.echo("If you give up what is damaged, this site forgets these runs:")
    for lost in found.lost:
        files = "; its files are kept aside" if lost.has_files else ""
        click.echo(f"  {clean(lost.run, 100):<40} {clean(lost.state, 20)}{files}")
    if found.is_old and found.kept:
        click.echo(
            "What was committed last may be lost. These runs stay, perhaps in an older state, as after a restore:"
        )
        for run in found.kept:
            click.echo(f"  {clean(run, 100)}")
    else:
        click.echo(f"This site keeps {len(found.kept)} runs, its identity, its settings and its audit log.")
