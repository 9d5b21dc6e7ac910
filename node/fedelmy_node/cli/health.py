"""`fedelmy-node health`: a probe for people, containers and systemd."""

from __future__ import annotations

from pathlib import Path

import click

from fedelmy_node.cli.frame import emit_json
from fedelmy_node.cli.options import json_option, state_option

__all__ = ["health"]


@click.command()
@state_option
@json_option
def health(state: Path, as_json: bool) -> int:
    """Ask the daemon of this state directory whether it is well.

    Exit code 0: it is; 1: it answers, but is not; 7: nothing answers.

    \b
    Examples:
      fedelmy-node health
      fedelmy-node health --json
    """
    from fedelmy_node.config.decode import encode
    from fedelmy_node.rpc.admin import admin_client

    with admin_client(state) as client:
        found = client.health()
    if as_json:
        emit_json(encode(found))
    else:
        state_text = "serving" if found.serving else "not serving"
        click.echo(f"site {found.site} is {state_text} on {found.address} (process {found.process})")
        click.echo(f"  now:    {found.active or 'idle'}")
        for waiting in found.queue:
            click.echo(f"  queued: {waiting}")
        for problem in found.problems:
            click.echo(f"  problem: {problem}")
        for warning in found.warnings:
            click.echo(f"  warning: {warning}")
    return 0 if found.serving else 1
