"""`fedelmy-node runs`: list, show, approve, refuse and prune the runs of this node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedelmy_node.cli.app import emit_json
from fedelmy_node.cli.options import json_option, run_names, state_flag, state_option
from fedelmy_node.domain.errors import ConfigError

if TYPE_CHECKING:
    from fedelmy_node.domain.names import RunId
    from fedelmy_node.domain.reports import EdgeReport, PrunedRun, RunReport
    from fedelmy_node.rpc.clients import AdminClient


@click.group()
def runs() -> None:
    """List, show, accept, approve, refuse and prune the runs of this node.

    \b
    Examples:
      fedelmy-node runs list
      fedelmy-node runs show xray-20270301-120000-4f2a
      fedelmy-node runs approve xray-20270301-120000-4f2a
    """


@runs.command("list")
@state_option
@json_option
def list_runs(state: Path, as_json: bool) -> None:
    """List the runs of this node, newest first, and show which ones await approval.

    \b
    Examples:
      fedelmy-node runs list
      fedelmy-node runs list --json
    """
    from fedelmy_node.config.decode import encode
    from fedelmy_node.rpc.clients import admin_client

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
        if run.state == "pending":
            click.echo(
                f"{'':<4}needs your approval: fedelmy-node runs show {run.run}{state_flag(state)}"
            )


@runs.command("show")
@click.argument("run", shell_complete=run_names)
@state_option
@json_option
def show_run(run: str, state: Path, as_json: bool) -> None:
    """Show one run at this site: what it asks, its steps, transfers, problems and contributors.

    \b
    Example:
      fedelmy-node runs show xray-20270301-120000-4f2a
    """
    from fedelmy_node.config.decode import encode
    from fedelmy_node.domain.names import run_id
    from fedelmy_node.rpc.clients import admin_client
    from fedelmy_node.store.details_log import details_of
    from fedelmy_node.store.state_directory import Layout

    with admin_client(state) as client:
        report = client.report(run_id(run))
    details = details_of(Layout(state).details, run) if report.state == "failed" else []
    if as_json:
        emit_json({**encode(report), "details": details})
        return
    for line in report_lines(report, state_flag(state)):
        click.echo(line)
    for line in detail_lines(details):
        click.echo(line)


def detail_lines(details: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Format entries of details.log; they are escaped, as they contain texts of other sites."""
    from fedelmy_node.domain.text import clean

    for entry in details:
        whole = str(entry.get("private") or entry.get("traceback", ""))
        text = "\n".join(clean(line, 1000) for line in whole.splitlines())
        moment, message = (
            clean(str(entry.get("time", "")), 40),
            clean(str(entry.get("message", ""))),
        )
        yield f"  details {moment}: {message}: {text}"


def report_lines(report: RunReport, flag: str = "", *, waits: bool = True) -> Iterator[str]:
    """Format a run at this site. `flag` is added to suggested commands, shown if `waits`."""
    from fedelmy_node.domain.event_text import absence_text, skip_text
    from fedelmy_node.domain.text import bytes_text

    yield f"run {report.run} at {report.site}: {report.state}"
    if report.code or report.message:
        yield f"  {': '.join(filter(None, (report.code, report.message)))}"
    yield from (f"  - {sentence}" for sentence in report.asked)
    if report.state == "pending":
        if waits:
            yield f"  It is waiting for your approval{_until(report)}. To decide:"
            yield f"    fedelmy-node runs approve {report.run}{flag}"
            yield f"    fedelmy-node runs refuse {report.run} --reason TEXT{flag}"
        return  # it has no steps or transfers yet
    if report.expires_at:
        yield f"  It waits for the operator to start it{_until(report)}."
    for step in report.steps:
        accuracy = step.result.get("accuracy")
        note = f"accuracy {accuracy:.4f}" if isinstance(accuracy, float) else step.sha256[:16]
        yield f"  step {step.step:<28} {step.state:<10} {note}".rstrip()
    for edge in report.edges:
        alternative = "/" in edge.edge
        if alternative and edge.state == "waiting":
            continue  # only used if a site in between is unreachable
        ends = f"{edge.sender} -> {edge.receiver}" + (", alternative" if alternative else "")
        size = f", {bytes_text(edge.size)}" if edge.size else ""
        yield f"  edge {ends:<28} {_edge_state(edge, report)}{size} ({edge.carries})"
    for absent in report.absent:
        yield f"  {absence_text(absent)}"
    if report.origin.contributors:
        yield f"  the last bundle was trained by {', '.join(report.origin.contributors)}"
    for skip in report.origin.skipped:
        yield f"  {skip_text(skip)}"


def _until(report: RunReport) -> str:
    if not report.expires_at:
        return ""
    return f", until {datetime.fromtimestamp(report.expires_at):%Y-%m-%d %H:%M}"


def _edge_state(edge: EdgeReport, report: RunReport) -> str:
    sends = edge.sender == report.site
    other = edge.receiver if sends else edge.sender
    return {
        "waiting": "nothing sent yet" if sends else "nothing received yet",
        "moving": f"sending to {other}" if sends else f"receiving from {other}",
        "done": f"received by {other}" if sends else "received",
        "settled": f"received by {other}; this site has nothing more to do",
        "given-up": f"given up: {other} was unreachable",
        "closed": "not used: another route was taken",
    }.get(edge.state, edge.state)


@runs.command("accept")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@state_option
@json_option
def accept_run(file: Path, yes: bool, state: Path, as_json: bool) -> None:
    """Take part in the run of FILE, a plan signed by an operator, after asking for confirmation.

    For sites that the operator cannot call, or that want the plan as a file. All the usual checks
    apply: signature, consent, data, disk, neighbours. Without confirmation the run stays pending,
    and can be approved or refused later.

    \b
    Example:
      fedelmy-node runs accept clinic.plan
    """
    from fedelmy_node.config.plan_file import read_plan_file
    from fedelmy_node.rpc.clients import admin_client

    if as_json and not yes:
        raise ConfigError("E-CONFIG-VALUE", "--json cannot ask for confirmation", hint="Add --yes.")
    signed = read_plan_file(file)
    with admin_client(state) as client:
        run, _ = client.accept(signed)
        _agree(client, run, state, yes=yes, as_json=as_json)


def _agree(client: AdminClient, run: RunId, state: Path, *, yes: bool, as_json: bool) -> None:
    """Show what a run asks, ask for confirmation, and approve exactly what was shown."""
    report = client.report(run)
    if not as_json:
        for line in report_lines(report, state_flag(state), waits=not yes):
            click.echo(line)
    if report.state == "pending" and not yes:
        _confirm_part(report.run)
    now = client.approve(report.run, report.plan_sha256)
    if as_json:
        emit_json({"run": report.run, "state": now, "asked": list(report.asked)})
    else:
        click.echo(
            f"This site takes part: run {report.run} is {now}. The operator can now start it."
        )


def _confirm_part(run: RunId) -> None:
    """Ask for confirmation; without it, say that the run stays pending."""
    try:
        click.confirm("Does this site take part?", abort=True)
    except click.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise
        click.echo(f"Not confirmed: run {run} stays pending.", err=True)
        raise SystemExit(1) from abort


@runs.command("approve")
@click.argument("run", shell_complete=run_names)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@state_option
@json_option
def approve_run(run: str, yes: bool, state: Path, as_json: bool) -> None:
    """Approve the pending RUN: show what it asks of this site, and ask for confirmation.

    Exactly the plan that is shown is approved. The operator then starts the run.

    \b
    Example:
      fedelmy-node runs approve xray-20270301-120000-4f2a
    """
    from fedelmy_node.domain.names import run_id
    from fedelmy_node.rpc.clients import admin_client

    if as_json and not yes:
        raise ConfigError("E-CONFIG-VALUE", "--json cannot ask for confirmation", hint="Add --yes.")
    with admin_client(state) as client:
        _agree(client, run_id(run), state, yes=yes, as_json=as_json)


@runs.command("refuse")
@click.argument("run", shell_complete=run_names)
@click.option("--reason", default="", help="Reason to show the operator.")
@state_option
@json_option
def refuse_run(run: str, reason: str, state: Path, as_json: bool) -> None:
    """Refuse RUN: it ends at this site, and the operator is notified.

    Only a run that has not started can be refused.

    \b
    Example:
      fedelmy-node runs refuse xray-20270301-120000-4f2a --reason "the ethics board has not met"
    """
    from fedelmy_node.domain.names import run_id
    from fedelmy_node.rpc.clients import admin_client

    readable = reason.encode("utf-8", "replace").decode()  # the terminal may split a character
    with admin_client(state) as client:
        now = client.refuse(run_id(run), readable[:400])
    if as_json:
        emit_json({"run": run, "state": now})
    else:
        click.echo(f"Run {run} was refused; the operator is notified.")


@runs.command("prune")
@click.argument("names", nargs=-1, metavar="[RUN]...", shell_complete=run_names)
@click.option(
    "--older-than",
    metavar="DURATION",
    help="All finished runs older than this, such as 12h or 30d.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@state_option
@json_option
def prune_runs(
    names: tuple[str, ...],
    older_than: str | None,
    dry_run: bool,
    yes: bool,
    state: Path,
    as_json: bool,
) -> None:
    """Remove finished runs with their results, logs and pools from this site.

    First export the results that you want to keep (`fedelmy-node model export`). Unfinished runs
    are not removed.

    \b
    Examples:
      fedelmy-node runs prune --older-than 30d --dry-run
      fedelmy-node runs prune --older-than 30d --yes
      fedelmy-node runs prune xray-20270301-120000-4f2a
    """
    from fedelmy_node.config.decode import encode
    from fedelmy_node.domain.federation import seconds_of
    from fedelmy_node.domain.names import run_id
    from fedelmy_node.rpc.clients import admin_client

    if bool(names) == (older_than is not None):
        said = "both runs and an age were given" if names else "neither a run nor an age was given"
        hint = "Give one or more run ids (`fedelmy-node runs list`), or an age: --older-than 30d."
        raise ConfigError("E-CONFIG-VALUE", said, hint=hint)
    if as_json and not (yes or dry_run):
        raise ConfigError(
            "E-CONFIG-VALUE", "--json cannot ask for confirmation", hint="Add --yes or --dry-run."
        )
    seconds = seconds_of(older_than) if older_than is not None else 0.0
    with admin_client(state) as client:
        found = client.prune([run_id(name) for name in names], seconds, dry_run=True)
        if not as_json:
            _show_pruned(found)
        if found and not dry_run:
            if not yes:
                click.confirm("Remove them permanently?", abort=True)
            shown = [run.run for run in found]  # exactly these
            found = client.prune(shown, 0.0, dry_run=False)
    if as_json:
        emit_json({"pruned": not dry_run, "runs": encode(found)})
    elif found and not dry_run:
        click.echo(f"{len(found)} removed.")


def _show_pruned(found: tuple[PrunedRun, ...]) -> None:
    from fedelmy_node.domain.text import bytes_text

    if not found:
        click.echo("Nothing to prune.")
        return
    for run in found:
        click.echo(f"  {run.run:<40} {run.state:<10} {bytes_text(run.size):>10}")
    click.echo(f"  {len(found)} in all, {bytes_text(sum(run.size for run in found))}")
