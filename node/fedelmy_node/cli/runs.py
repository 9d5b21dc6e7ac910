"""`fedelmy-node runs`: what this node has done and does."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from fedelmy_node.cli.frame import emit_json
from fedelmy_node.cli.options import json_option, state_option

__all__ = ["runs"]


@click.group()
def runs() -> None:
    """List and show the runs of this node."""


@runs.command("list")
@state_option
@json_option
def list_runs(state: Path, as_json: bool) -> None:
    """The runs that this node knows, newest first."""
    from fedelmy_node.config.decode import encode
    from fedelmy_node.rpc.admin import admin_client

    with admin_client(state) as client:
        found = client.runs()
    if as_json:
        emit_json({"runs": encode(found)})
        return
    if not found:
        click.echo("This node has no runs yet.")
    for run in found:
        changed = datetime.fromtimestamp(run.changed_at).strftime("%Y-%m-%d %H:%M")
        click.echo(f"{run.run:<40} {run.state:<10} {changed}  {run.federation}")


@runs.command("show")
@click.argument("run")
@state_option
@json_option
def show_run(run: str, state: Path, as_json: bool) -> None:
    """One run: its steps and its transfers at this site."""
    from fedelmy_node.config.decode import encode
    from fedelmy_node.domain.names import run_id
    from fedelmy_node.rpc.admin import admin_client

    with admin_client(state) as client:
        report = client.report(run_id(run))
    if as_json:
        emit_json(encode(report))
        return
    click.echo(f"run {report.run} at {report.site}: {report.state}")
    if report.code:
        click.echo(f"  {report.code}: {report.message}")
    for step in report.steps:
        accuracy = step.result.get("accuracy")
        note = f"accuracy {accuracy:.4f}" if isinstance(accuracy, float) else step.sha256[:16]
        click.echo(f"  step {step.step:<28} {step.state:<10} {note}")
    for edge in report.edges:
        way = f"{edge.sender} -> {edge.receiver}"
        click.echo(f"  edge {way:<28} {edge.state:<10} {edge.size} bytes ({edge.carries})")
