"""`fedelmy-launch cancel`: end a run at every site."""

from __future__ import annotations

import click

from fedelmy_launcher.cli import options
from fedelmy_node.cli.app import emit_json


@click.command()
@options.target_arguments
@click.option("--reason", default="", help="Reason, logged by the sites.")
@options.operator_options
@options.json_option
def cancel(given: options.Given, reason: str, operator: options.Operator, as_json: bool) -> int:
    """End RUN at every site of FEDERATION (default: federation.toml).

    Trained models stay on the sites' disks. A site that is down learns of it from its neighbours
    when it comes back. Without FEDERATION, use --at with any one site of the run.

    Exit code 0: every site has ended the run; otherwise that of the first problem.

    \b
    Examples:
      fedelmy-launch cancel federation.toml
      fedelmy-launch cancel xray-20270301-120000-4f2a --reason "wrong classes"
      fedelmy-launch cancel xray-20270301-120000-4f2a --at north.example:50051
    """
    from fedelmy_launcher.control.find_run import discover, newest_run
    from fedelmy_node.domain.errors import PeerError
    from fedelmy_node.domain.names import run_id

    target = options.target_of(*given)
    sites, federation = options.open_sites(target, operator())
    with sites:
        # Not the newest active run: this command is easily repeated, and must not end another one.
        newest, going = (None, None) if target.run else newest_run(sites, federation)
        run = newest.run if newest else run_id(target.run or "")
        reports, _ = discover(sites, run)  # also finds sites that only their neighbours know
        states, refusals = sites.cancel(run, reason, reports)
    if as_json:
        problems = {refusal.site: refusal.error.code for refusal in refusals}
        goes_on = going.run if going else None
        emit_json({"run": run, "states": states, "problems": problems, "goes_on": goes_on})
    else:
        click.echo(f"run {run}")
        for site, state in states.items():
            click.echo(f"  {site:<16} {state}")
        for refusal in refusals:
            click.echo(f"  {refusal.site:<16} {refusal.error}\n{'':19}{refusal.error.hint}")
        down = [refusal.site for refusal in refusals if isinstance(refusal.error, PeerError)]
        if states and down:
            names = ", ".join(down)
            click.echo(f"  Sites that are down ({names}) will learn of it when they come back.")
        if going:
            click.echo(f"  Run {going.run} is still active; to end it, give its name.")
    return refusals[0].error.exit_code if refusals else 0
