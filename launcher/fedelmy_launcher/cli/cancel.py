"""`fedelmy-launch cancel`: end a run everywhere."""

from __future__ import annotations

from pathlib import Path

import click

from fedelmy_launcher.cli.options import (
    json_option,
    load_operator,
    newest_run,
    open_sites,
    operator_options,
    target_arguments,
    target_of,
)
from fedelmy_node.cli.frame import emit_json

__all__ = ["cancel"]


@click.command()
@target_arguments
@click.option("--reason", default="", help="Why; the sites log it.")
@operator_options
@json_option
def cancel(
    words: tuple[str, ...], run_name: str | None, at: str | None, reason: str, identity: Path, insecure: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """End RUN at every site of FEDERATION (default: federation.toml).

    What was trained stays on the sites' disks. A site that is down hears of it from its neighbours when it is
    back. Without FEDERATION, --at names any one site of the run.

    Exit code 0: every site was told; otherwise that of the first that could not be.

    \b
    Examples:
      fedelmy-launch cancel federation.toml
      fedelmy-launch cancel xray-20270301-120000-4f2a --reason "wrong classes"
      fedelmy-launch cancel xray-20270301-120000-4f2a --at north.example:50051
    """
    from fedelmy_launcher.discovery import discover
    from fedelmy_node.domain.names import run_id
    from fedelmy_node.errors import PeerError

    target = target_of(words, run_name, at)
    sites, federation = open_sites(target, load_operator(identity, insecure))
    with sites:
        # Never an older one because the newest was cancelled already: this command is easily given twice.
        newest, going = (None, None) if target.run else newest_run(sites, federation)
        run = newest.run if newest else run_id(target.run or "")
        reports, _ = discover(sites, run)  # sites that only its neighbours know are told, too
        states, refusals = sites.cancel(run, reason, reports)
    if as_json:
        problems = {refusal.site: refusal.error.code for refusal in refusals}
        emit_json({"run": run, "states": states, "problems": problems, "goes_on": going.run if going else None})
    else:
        click.echo(f"run {run}")
        for site, state in states.items():
            click.echo(f"  {site:<16} {state}")
        for refusal in refusals:
            click.echo(f"  {refusal.site:<16} {refusal.error}\n{'':19}{refusal.error.hint}")
        down = [refusal.site for refusal in refusals if isinstance(refusal.error, PeerError)]
        if states and down:
            click.echo(
                f"  Sites that are down ({', '.join(down)}) hear of it from their neighbours when they are back."
            )
        if going:
            click.echo(f"  Run {going.run} goes on: name it if it is to end.")
    return refusals[0].error.exit_code if refusals else 0
