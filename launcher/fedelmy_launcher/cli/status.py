"""`fedelmy-launch status`: how a run is doing, asked of the sites themselves."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
from fedelmy_node.domain.events import EdgeState, StepState
from fedelmy_node.domain.plan import StepKind
from fedelmy_node.errors import EXIT_SUBSET

if TYPE_CHECKING:
    from fedelmy_launcher.control import Sites
    from fedelmy_launcher.live.crowd import Together
    from fedelmy_launcher.progress import RunProgress
    from fedelmy_launcher.standing import Standing
    from fedelmy_node.domain.names import RunId, SiteName
    from fedelmy_node.domain.reports import RunReport
    from fedelmy_node.errors import FedelmyError

__all__ = ["status"]


@click.command()
@target_arguments
@click.option("--watch", is_flag=True, help="Follow the run on the screen until it ends, or until Ctrl-C.")
@operator_options
@json_option
def status(
    words: tuple[str, ...], run_name: str | None, at: str | None, watch: bool, identity: Path, insecure: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Show how RUN is doing at every site of FEDERATION (default: federation.toml).

    Every site tells its steps, whom it waits for and cannot reach, and what it will do about it.
    Any machine with an operator's certificate will do; without FEDERATION, --at names any one site of the run.

    --watch shows the run live, as `run` does, and changes nothing: the same as `run --attach RUN`.
    Without RUN it is the newest one; if that was cancelled while another one goes on, the one that goes on.

    Exit code 0: every site answered; 20: the run is over, on a subset of its sites; otherwise that of the
    first problem. With --watch those of `run`: 0, 20, 10 if the run failed or was ended, 130 after Ctrl-C.

    \b
    Examples:
      fedelmy-launch status
      fedelmy-launch status --watch
      fedelmy-launch status federation.toml xray-20270301-120000-4f2a --json
      fedelmy-launch status xray-20270301-120000-4f2a --at north.example:50051
    """
    from fedelmy_launcher.cli.attach import attach
    from fedelmy_node.domain.names import run_id

    target = target_of(words, run_name, at)
    sites, federation = open_sites(target, load_operator(identity, insecure))
    with sites:
        newest, going = (None, None) if target.run else newest_run(sites, federation)
        chosen = going or newest
        run = chosen.run if chosen else run_id(target.run or "")
        cancelled = newest.run if newest and going else None
        if cancelled and not as_json:
            click.echo(f"a newer run was cancelled: {cancelled}")
        if watch:
            return attach(sites, run, sys.argv[1:], file=target.federation, as_json=as_json)
        return _look_once(sites, run, cancelled, as_json=as_json)


def _look_once(sites: Sites, run: RunId, cancelled: RunId | None, *, as_json: bool) -> int:
    from fedelmy_launcher.discovery import discover, reported_run
    from fedelmy_launcher.live.alerts import alerts_of
    from fedelmy_launcher.live.glance import glance, pace_of
    from fedelmy_launcher.standing import Standing
    from fedelmy_node.config.decode import encode

    reports, refusals = discover(sites, run)
    nodes, _ = sites.describe(list(reports))
    outline = reported_run(run, reports)
    progress = glance(sites, outline, reports)
    problems = {refusal.site: refusal.error for refusal in refusals}
    warnings = alerts_of(sites.identity, nodes.values(), reports)
    standing = Standing(outline, reports, problems)
    if as_json:
        errors = {site: {"code": e.code, "message": e.message, "hint": e.hint} for site, e in problems.items()}
        paces = {site: pace_of(known) for site, known in progress.sites.items() if known.doing}
        found = {"sites": encode(reports), "progress": paces, "problems": errors, "warnings": warnings}
        emit_json({**standing.encoded(), **found, "newer_cancelled": cancelled})
    else:
        _show(standing, reports, problems, progress)
        for warning in warnings:
            click.echo(f"  warning {warning}")
    if standing.is_over and standing.is_subset:
        return EXIT_SUBSET
    return refusals[0].error.exit_code if refusals else 0


def _show(
    standing: Standing,
    reports: Mapping[SiteName, RunReport],
    problems: Mapping[SiteName, FedelmyError],
    progress: RunProgress,
) -> None:
    from fedelmy_launcher.live.crowd import Together

    click.echo(f"run {standing.run}" + (f" of {standing.federation}" if standing.federation else ""))
    for row in _rows(standing.sites, reports, progress):
        if isinstance(row, Together):
            click.echo(f"  {row.span}: {len(row.sites)} sites, {row.text}")
        elif row in reports:
            _show_site(reports[row], standing, progress)
        elif row in problems:
            error = problems[row]
            click.echo(f"  {row:<16} {error}\n{'':19}{error.hint}")
    outcome = standing.outcome
    if outcome.contributors:
        holder = "the result" if outcome.result else "so far the model"
        click.echo(f"  {holder} holds the work of {', '.join(outcome.contributors)}")
    for line in outcome.sentences():
        click.echo(f"  {line}")
    for line in standing.contradictions:
        click.echo(f"  contradiction: {line}")


def _rows(
    sites: Sequence[SiteName], reports: Mapping[SiteName, RunReport], progress: RunProgress
) -> list[SiteName | Together]:
    """One per site; of many, neighbours at rest share one."""
    from fedelmy_launcher.live.crowd import gathered, rest_of
    from fedelmy_launcher.picture.geometry import CROWD

    if len(sites) <= CROWD:
        return [*sites]

    def rest(site: SiteName) -> str:
        report = reports.get(site)
        if report is None or report.absent or any(edge.state == EdgeState.MOVING for edge in report.edges):
            return ""
        return rest_of(progress, progress.sites[site]) if _is_quiet(report) else ""

    rows: list[SiteName | Together] = [*gathered(sites, rest, str)]
    return rows


def _is_quiet(report: RunReport) -> bool:
    return all(step.state in (StepState.WAITING, StepState.DONE) for step in report.steps)


def _show_site(report: RunReport, standing: Standing, progress: RunProgress) -> None:
    from fedelmy_launcher.live.glance import pace_text
    from fedelmy_node.domain.narration import absence_text, percent

    reason = ": ".join(part for part in (report.code, report.message) if part)
    click.echo(f"  {report.site:<16} {report.state}" + (f" ({reason})" if reason else ""))
    for step in report.steps:
        accuracy = step.result.get("accuracy")
        note = f"accuracy {percent(accuracy)}" if isinstance(accuracy, float) else standing.note(report, step)
        if step.state == StepState.RUNNING and step.kind == StepKind.TRAIN:
            note = pace_text(progress.sites[report.site])
        click.echo(f"    {step.step:<28} {step.state:<8} {note}".rstrip())
    for edge in report.edges:
        if edge.sender == report.site and edge.state == EdgeState.MOVING:
            click.echo(f"    handing over to {edge.receiver}")
    for absent in report.absent:
        click.echo(f"    {absence_text(absent)}")
