"""`fedelmy-launch plan`: every site's part of a run as a signed file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from fedelmy_launcher.cli.options import (
    federation_argument,
    json_option,
    load_operator,
    operator_options,
    run_option,
)
from fedelmy_node.cli.frame import emit_json

__all__ = ["plan"]


@click.command()
@federation_argument
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="A directory: a file for each site."
)
@run_option("Give the run this name.")
@operator_options
@json_option
def plan(federation: Path, out: Path, run_name: str | None, identity: Path, insecure: bool, as_json: bool) -> None:
    """Write the plan of a run of FEDERATION (default: federation.toml) as files, one per site, and ask nobody.

    For sites that you cannot call, or that want the plan as a file. Each is signed; send it in any way. The site's
    administrator accepts it with `fedelmy-node runs accept FILE`; `fedelmy-launch run --plan DIRECTORY` then starts
    the run. Sites that you can call need no file: `run` asks them as ever.

    \b
    Example:
      fedelmy-launch plan federation.toml --out plans
      fedelmy-launch run federation.toml --plan plans --accepted clinic
    """
    from fedelmy_launcher.federation_file import load_federation
    from fedelmy_launcher.handed import write_plans
    from fedelmy_launcher.plans import compile_plan, new_plan_id, new_run_id
    from fedelmy_node.domain.names import run_id

    described = load_federation(federation)
    operator = load_operator(identity, insecure)
    made = compile_plan(described, new_run_id(described) if run_name is None else run_id(run_name))
    made = replace(made, plan_id=new_plan_id())
    written = write_plans(made, operator, out)
    if as_json:
        emit_json({"run": made.run, "plans": {site: str(path) for site, path in written.items()}})
        return
    click.echo(f"run {made.run}")
    for site, path in written.items():
        click.echo(f"  {site:<16} {path}")
    click.echo("\nAt a site that you cannot call:  fedelmy-node runs accept FILE")
    click.echo(f"Then, once for all of these:     fedelmy-launch run {federation} --plan {out} --accepted SITE ...")
