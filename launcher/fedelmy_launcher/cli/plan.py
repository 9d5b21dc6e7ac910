"""`fedelmy-launch plan`: write each site's part of a run as a signed file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from fedelmy_launcher.cli import options
from fedelmy_node.cli.app import emit_json


@click.command()
@options.federation_argument
@click.option(
    "--out", type=options.DIRECTORY, required=True, help="Directory for one file per site."
)
@options.run_option("Name of the run.")
@options.operator_options
@options.json_option
def plan(
    federation: Path, out: Path, run_name: str | None, operator: options.Operator, as_json: bool
) -> None:
    """Write the plan of a run of FEDERATION as signed files, one per site.

    For sites that you cannot reach, or that want the plan as a file. Send each file to its site;
    the administrator accepts it with `fedelmy-node runs accept FILE`. `fedelmy-launch run --plan
    DIRECTORY` then starts the run. Sites that you can reach need no file: `run` asks them as usual.

    \b
    Example:
      fedelmy-launch plan federation.toml --out plans
      fedelmy-launch run federation.toml --plan plans --accepted clinic
    """
    from fedelmy_launcher.plans import compiler
    from fedelmy_launcher.plans.plan_files import write_plans
    from fedelmy_node.domain.names import run_id

    described = compiler.load_federation(federation)
    identity = operator()
    run = compiler.new_run_id(described) if run_name is None else run_id(run_name)
    made = replace(compiler.compile_plan(described, run), plan_id=compiler.new_plan_id())
    written = write_plans(made, identity, out)
    if as_json:
        emit_json({"run": made.run, "plans": {site: str(path) for site, path in written.items()}})
        return
    click.echo(f"run {made.run}")
    for site, path in written.items():
        click.echo(f"  {site:<16} {path}")
    command = f"fedelmy-launch run {federation} --plan {out} --accepted SITE ..."
    click.echo("\nAt a site that you cannot reach:  fedelmy-node runs accept FILE")
    click.echo(f"Then, once for all of these:      {command}")
