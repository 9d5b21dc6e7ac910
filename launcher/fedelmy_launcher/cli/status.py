"""`fedelmy-launch status`: show how a run is doing, as reported by its sites."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from fedelmy_launcher.cli import options
from fedelmy_node.cli.app import emit_json
from fedelmy_node.domain.errors import EXIT_SUBSET
from fedelmy_node.domain.events import EdgeState, StepState

if TYPE_CHECKING:
    from fedelmy_launcher.control.sites import Sites
    from fedelmy_launcher.control.status import RunStatus
    from fedelmy_launcher.view.progress import RunProgress
    from fedelmy_launcher.view.row_grouping import Together
    from fedelmy_node.domain.errors import FedelmyError
    from fedelmy_node.domain.names import RunId, SiteName
    from fedelmy_node.domain.reports import RunReport


@click.command()
@options.target_arguments
@click.option("--watch", is_flag=True, help="Follow the run until it ends, or until Ctrl-C.")
@options.operator_options
@options.json_option
def status(given: options.Given, watch: bool, operator: options.Operator, as_json: bool) -> int:
    """Show how RUN is doing at every site of FEDERATION (default: federation.toml).

    Every site reports its steps, the sites it waits for or cannot reach, and what it will do. This
    works on any machine with an operator's certificate; without FEDERATION, use --at with any one
    site of the run.

    Without RUN, the newest run is shown; if it was cancelled, the newest one that is still active.
    --watch shows the run live and changes nothing, the same as `run --attach RUN`.

    Exit code 0: every site answered; 20: the run ended on a subset of its sites; otherwise that
    of the first problem. With --watch as for `run`: 0, 20, 10 if the run failed or was ended, 130
    after Ctrl-C.

    \b
    Examples:
      fedelmy-launch status
      fedelmy-launch status --watch
      fedelmy-launch status federation.toml xray-20270301-120000-4f2a --json
      fedelmy-launch status xray-20270301-120000-4f2a --at north.example:50051
    """
    from fedelmy_launcher.cli.attach import attach
    from fedelmy_launcher.control.find_run import newest_run
    from fedelmy_node.domain.names import run_id

    target = options.target_of(*given)
    sites, federation = options.open_sites(target, operator())
    with sites:
        newest, going = (None, None) if target.run else newest_run(sites, federation)
        chosen = going or newest
        run = chosen.run if chosen else run_id(target.run or "")
        cancelled = newest.run if newest and going else None
        if cancelled and not as_json:
            click.echo(f"a newer run was cancelled: {cancelled}")
        if watch:
            return attach(sites, run, sys.argv[1:], file=target.federation, as_json=as_json)
        return _show_once(sites, run, cancelled, as_json=as_json)


def _show_once(sites: Sites, run: RunId, cancelled: RunId | None, *, as_json: bool) -> int:
    from fedelmy_launcher.control.find_run import discover, reported_run
    from fedelmy_launcher.control.status import RunStatus
    from fedelmy_launcher.view.terminal.snapshot import alerts_of, glance, pace_of
    from fedelmy_node.config.decode import encode

    reports, refusals = discover(sites, run)
    nodes, _ = sites.describe(list(reports))
    outline = reported_run(run, reports)
    progress = glance(sites, outline, reports)
    problems = {refusal.site: refusal.error for refusal in refusals}
    warnings = alerts_of(sites.identity, nodes.values(), reports)
    current = RunStatus(outline, reports, problems)
    if as_json:
        errors = {site: options.problem_json(error) for site, error in problems.items()}
        paces = {site: pace_of(known) for site, known in progress.sites.items() if known.doing}
        found = {"sites": encode(reports), "progress": paces, "problems": errors}
        more = {"warnings": warnings, "newer_cancelled": cancelled}
        emit_json({**current.encoded(), **found, **more})
    else:
        _show(current, reports, problems, progress)
        for warning in warnings:
            click.echo(f"  warning {warning}")
    if current.is_over and current.is_subset:
        return EXIT_SUBSET
    return refusals[0].error.exit_code if refusals else 0


def _show(
    current: RunStatus,
    reports: Mapping[SiteName, RunReport],
    problems: Mapping[SiteName, FedelmyError],
    progress: RunProgress,
) -> None:
    from fedelmy_launcher.view.row_grouping import Together

    click.echo(f"run {current.run}" + (f" of {current.federation}" if current.federation else ""))
    for row in _rows(current.sites, reports, progress):
        if isinstance(row, Together):
            click.echo(f"  {row.span}: {len(row.sites)} sites, {row.text}")
        elif row in reports:
            _show_site(reports[row], current, progress)
        elif row in problems:
            error = problems[row]
            click.echo(f"  {row:<16} {error}\n{'':19}{error.hint}")
    outcome = current.outcome
    if outcome.contributors:
        model = "the result" if outcome.result else "the model so far"
        click.echo(f"  {model} was trained by {', '.join(outcome.contributors)}")
    for line in outcome.sentences():
        click.echo(f"  {line}")
    for line in current.contradictions:
        click.echo(f"  contradiction: {line}")


def _rows(
    sites: Sequence[SiteName], reports: Mapping[SiteName, RunReport], progress: RunProgress
) -> list[SiteName | Together]:
    """One row per site; of many sites, idle neighbours share one."""
    from fedelmy_launcher.view.graph_layout import CROWD
    from fedelmy_launcher.view.row_grouping import gathered, rest_of

    if len(sites) <= CROWD:
        return [*sites]

    def rest(site: SiteName) -> str:
        report = reports.get(site)
        if report is None or report.absent:
            return ""
        if any(edge.state == EdgeState.MOVING for edge in report.edges):
            return ""
        return rest_of(progress, progress.sites[site]) if _is_quiet(report) else ""

    rows: list[SiteName | Together] = [*gathered(sites, rest, str)]
    return rows


def _is_quiet(report: RunReport) -> bool:
    return all(step.state in (StepState.WAITING, StepState.DONE) for step in report.steps)


def _show_site(report: RunReport, current: RunStatus, progress: RunProgress) -> None:
    from fedelmy_launcher.view.terminal.snapshot import pace_text
    from fedelmy_node.domain.event_text import absence_text
    from fedelmy_node.domain.text import percent

    reason = ": ".join(part for part in (report.code, report.message) if part)
    click.echo(f"  {report.site:<16} {report.state}" + (f" ({reason})" if reason else ""))
    for step in report.steps:
        accuracy = step.result.get("accuracy")
        note = current.note(report, step)
        if isinstance(accuracy, float):
            note = f"accuracy {percent(accuracy)}"
        if step.state == StepState.RUNNING:
            note = pace_text(progress.sites[report.site])
        click.echo(f"    {step.step:<28} {step.state:<8} {note}".rstrip())
    for edge in report.edges:
        if edge.sender == report.site and edge.state == EdgeState.MOVING:
            click.echo(f"    handing over to {edge.receiver}")
    for absent in report.absent:
        click.echo(f"    {absence_text(absent)}")
