"""`fedelmy-launch cancel`: end a run everywhere."""

from __future__ import annotations

from pathlib import Path

import click

from fedelmy_launcher.cli.options import (
    federation_argument,
    find_run,
    json_option,
    load_operator,
    operator_options,
    run_option,
)
from fedelmy_node.cli.frame import emit_json

__all__ = ["cancel"]


@click.command()
@federation_argument
@run_option("The run.  [default: the newest of this federation]")
@click.option("--reason", default="", help="Why; the sites log it.")
@operator_options
@json_option
def cancel(federation: Path, run_name: str | None, reason: str, identity: Path, insecure: bool, as_json: bool) -> int:
    """End a run at every site of FEDERATION; what was trained stays on the sites' disks.

    A site that cannot be reached is told by its neighbours, as far as they can reach it.

    \b
    Examples:
      fedelmy-launch cancel federation.toml
      fedelmy-launch cancel federation.toml --run xray-20270301-120000-4f2a --reason "wrong classes"
    """
    from fedelmy_launcher.control import Sites
    from fedelmy_launcher.federation_file import load_federation

    described = load_federation(federation)
    with Sites(described, load_operator(identity, insecure)) as sites:
        run = find_run(sites, run_name, described.name)
        states, refusals = sites.cancel(run, reason)
    if as_json:
        problems = {refusal.site: refusal.error.code for refusal in refusals}
        emit_json({"run": run, "states": states, "problems": problems})
    else:
        for site, state in states.items():
            click.echo(f"  {site:<16} {state}")
        for refusal in refusals:
            click.echo(f"  {refusal.site:<16} {refusal.error}\n{'':19}{refusal.error.hint}")
    return refusals[0].error.exit_code if refusals else 0
