"""`fedelmy-launch status`: how a run is doing, asked of the sites themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedelmy_launcher.cli.options import (
    find_run,
    json_option,
    load_operator,
    open_sites,
    operator_options,
    target_arguments,
    target_of,
)
from fedelmy_node.cli.frame import emit_json
from fedelmy_node.domain.events import EdgeState
from fedelmy_node.errors import EXIT_SUBSET

if TYPE_CHECKING:
    from fedelmy_launcher.standing import Standing
    from fedelmy_node.domain.names import SiteName
    from fedelmy_node.domain.reports import RunReport
    from fedelmy_node.errors import FedelmyError

__all__ = ["status"]


@click.command()
@target_arguments
@operator_options
@json_option
def status(
    words: tuple[str, ...], run_name: str | None, at: str | None, identity: Path, insecure: bool, as_json: bool
) -> int:
    """Show how RUN is doing at every site of FEDERATION (default: federation.toml).

    Every site tells its steps, whom it waits for and cannot reach, and what it will do about it.
    Any machine with an operator's certificate will do; without FEDERATION, --at names any one site of the run.

    Exit code 0: every site answered; 20: the run is over, on a subset of its sites; otherwise that of the
    first problem.

    \b
    Examples:
      fedelmy-launch status
      fedelmy-launch status federation.toml xray-20270301-120000-4f2a --json
      fedelmy-launch status xray-20270301-120000-4f2a --at north.example:50051
    """
    from fedelmy_launcher.control import expiry_warnings
    from fedelmy_launcher.discovery import discover, reported_run
    from fedelmy_launcher.standing import Standing
    from fedelmy_node.config.decode import encode

    target = target_of(words, run_name, at)
    sites, federation = open_sites(target, load_operator(identity, insecure))
    with sites:
        run = find_run(sites, target.run, federation)
        reports, refusals = discover(sites, run)
        nodes, _ = sites.describe(list(reports))
    problems = {refusal.site: refusal.error for refusal in refusals}
    warnings = expiry_warnings(sites.identity, nodes.values())
    standing = Standing(reported_run(run, reports), reports, problems)
    if as_json:
        errors = {site: {"code": e.code, "message": e.message, "hint": e.hint} for site, e in problems.items()}
        emit_json({**standing.encoded(), "sites": encode(reports), "problems": errors, "warnings": warnings})
    else:
        _show(standing, reports, problems)
        for warning in warnings:
            click.echo(f"  warning: {warning}")
    if standing.is_over and standing.is_subset:
        return EXIT_SUBSET
    return refusals[0].error.exit_code if refusals else 0


def _show(standing: Standing, reports: Mapping[SiteName, RunReport], problems: Mapping[SiteName, FedelmyError]) -> None:
    click.echo(f"run {standing.run}" + (f" of {standing.federation}" if standing.federation else ""))
    for site in standing.sites:
        if site in reports:
            _show_site(reports[site], standing)
        elif site in problems:
            error = problems[site]
            click.echo(f"  {site:<16} {error}\n{'':19}{error.hint}")
    outcome = standing.outcome
    if outcome.contributors:
        verb = "holds" if outcome.result else "will hold"
        click.echo(f"  the result {verb} the work of {', '.join(outcome.contributors)}")
    for line in outcome.sentences():
        click.echo(f"  {line}")


def _show_site(report: RunReport, standing: Standing) -> None:
    from fedelmy_node.domain.narration import absence_text, percent

    reason = ": ".join(part for part in (report.code, report.message) if part)
    click.echo(f"  {report.site:<16} {report.state}" + (f" ({reason})" if reason else ""))
    for step in report.steps:
        accuracy = step.result.get("accuracy")
        note = f"accuracy {percent(accuracy)}" if isinstance(accuracy, float) else standing.note(report, step)
        click.echo(f"    {step.step:<28} {step.state:<8} {note}".rstrip())
    for edge in report.edges:
        if edge.sender == report.site and edge.state == EdgeState.MOVING:
            click.echo(f"    handing over to {edge.receiver}")
    for absent in report.absent:
        click.echo(f"    {absence_text(absent)}")
