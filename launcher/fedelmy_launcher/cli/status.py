"""`fedelmy-launch status`: how a run is doing, asked of the sites themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
from fedelmy_node.domain.events import RunState, StepState

if TYPE_CHECKING:
    from fedelmy_node.domain.reports import RunReport

__all__ = ["status"]


@click.command()
@federation_argument
@run_option("The run.  [default: the newest of this federation]")
@operator_options
@json_option
def status(federation: Path, run_name: str | None, identity: Path, insecure: bool, as_json: bool) -> int:
    """Show how a run is doing at every site of FEDERATION.

    Exit code 0: every site answered; otherwise that of the first problem.

    \b
    Examples:
      fedelmy-launch status federation.toml
      fedelmy-launch status federation.toml --run xray-20270301-120000-4f2a --json
    """
    from fedelmy_launcher.control import Sites
    from fedelmy_launcher.federation_file import load_federation
    from fedelmy_node.config.decode import encode

    described = load_federation(federation)
    with Sites(described, load_operator(identity, insecure)) as sites:
        run = find_run(sites, run_name, described.name)
        reports, refusals = sites.reports(run)
    problems = {refusal.site: refusal.error for refusal in refusals}
    if as_json:
        errors = {site: {"code": e.code, "message": e.message, "hint": e.hint} for site, e in problems.items()}
        emit_json({"run": run, "sites": encode(reports), "problems": errors})
    else:
        click.echo(f"run {run}")
        for member in described.members:
            if member.name in problems:
                error = problems[member.name]
                click.echo(f"  {member.name:<16} {error}\n{'':19}{error.hint}")
            else:
                _show(reports[member.name])
    return refusals[0].error.exit_code if refusals else 0


def _show(report: RunReport) -> None:
    reason = ": ".join(part for part in (report.code, report.message) if part)
    click.echo(f"  {report.site:<16} {report.state}" + (f" ({reason})" if reason else ""))
    for step in report.steps:
        accuracy = step.result.get("accuracy")
        note = f"accuracy {100 * accuracy:.1f}%" if isinstance(accuracy, float) else ""
        if step.state == StepState.WAITING:
            late = [e.sender for e in report.edges if e.edge.endswith(f">{step.step}") and e.state != "done"]
            begun = report.state != RunState.PREPARED
            here = "for another step of this site" if begun else "for the operator to start the run"
            note = f"for {', '.join(late)}" if late else here
        click.echo(f"    {step.step:<28} {step.state:<8} {note}".rstrip())
    for edge in report.edges:
        if edge.sender == report.site and edge.state == "moving":
            click.echo(f"    handing over to {edge.receiver}")
