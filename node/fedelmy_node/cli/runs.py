"""`fedelmy-node runs`: what this node is asked, does and has done; to agree to it, and how to forget it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedelmy_node.cli.frame import emit_json
from fedelmy_node.cli.options import json_option, run_names, state_flag, state_option
from fedelmy_node.errors import ConfigError

if TYPE_CHECKING:
    from fedelmy_node.domain.names import RunId
    from fedelmy_node.domain.reports import EdgeReport, PrunedRun, RunReport
    from fedelmy_node.rpc.clients import AdminClient

__all__ = ["runs", "report_lines", "detail_lines"]


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
    """The runs that this node knows, newest first, and which wait for you.

    \b
    Examples:
      fedelmy-node runs list
      fedelmy-node runs list --json
    """
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
        if run.state == "pending":
            click.echo(f"{'':<4}waits for you: fedelmy-node runs show {run.run}{state_flag(state)}")


@runs.command("show")
@click.argument("run", shell_complete=run_names)
@state_option
@json_option
def show_run(run: str, state: Path, as_json: bool) -> None:
    """One run at this site: what it asks, its steps and transfers, whom it cannot reach, whose work its bundle holds.

    \b
    Example:
      fedelmy-node runs show xray-20270301-120000-4f2a
    """
    from fedelmy_node.config.decode import encode
    from fedelmy_node.domain.names import run_id
    from fedelmy_node.rpc.admin import admin_client
    from fedelmy_node.store.details import details_of
    from fedelmy_node.store.layout import Layout

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
    """What the private file says, for people; texts of others are in it, and tracebacks have lines of their own."""
    from fedelmy_node.domain.texts import clean

    for entry in details:
        whole = str(entry.get("private") or entry.get("traceback", ""))
        text = "\n".join(clean(line, 1000) for line in whole.splitlines())
        yield f"  details {clean(str(entry.get('time', '')), 40)}: {clean(str(entry.get('message', '')))}: {text}"


def report_lines(report: RunReport, flag: str = "", *, waits: bool = True) -> Iterator[str]:
    """A run at this site, for people. `flag`: what commands that they are told need; `waits`: whether to tell them."""
    from fedelmy_node.domain.narration import absence_text, bytes_text, skip_text

    yield f"run {report.run} at {report.site}: {report.state}"
    if report.code or report.message:
        yield f"  {': '.join(part for part in (report.code, report.message) if part)}"
    yield from (f"  - {sentence}" for sentence in report.asked)
    if report.state == "pending":
        if waits:
            yield f"  It waits for you{_until(report)}. Yes or no:"
            yield f"    fedelmy-node runs approve {report.run}{flag}"
            yield f"    fedelmy-node runs refuse {report.run} --reason TEXT{flag}"
        return  # there is nothing to tell of steps and transfers
    if report.expires_at:
        yield f"  It waits for the operator to start it{_until(report)}."
    for step in report.steps:
        accuracy = step.result.get("accuracy")
        note = f"accuracy {accuracy:.4f}" if isinstance(accuracy, float) else step.sha256[:16]
        yield f"  step {step.step:<28} {step.state:<10} {note}".rstrip()
    for edge in report.edges:
        around = "/" in edge.edge
        if around and edge.state == "waiting":
            continue  # a way around somebody who may never be missing
        way = f"{edge.sender} -> {edge.receiver}" + (", around" if around else "")
        size = f", {bytes_text(edge.size)}" if edge.size else ""
        yield f"  edge {way:<28} {_edge_state(edge, report)}{size} ({edge.carries})"
    for absent in report.absent:
        yield f"  {absence_text(absent)}"
    if report.origin.contributors:
        yield f"  the last bundle holds {', '.join(report.origin.contributors)}"
    for skip in report.origin.skipped:
        yield f"  {skip_text(skip)}"


def _until(report: RunReport) -> str:
    """When a run that nobody decides on expires, if that is known."""
    if not report.expires_at:
        return ""
    return f", until {datetime.fromtimestamp(report.expires_at):%Y-%m-%d %H:%M}"


def _edge_state(edge: EdgeReport, report: RunReport) -> str:
    sends = edge.sender == report.site
    other = edge.receiver if sends else edge.sender
    return {
        "waiting": "nothing sent yet" if sends else "nothing received yet",
        "moving": f"handing over to {other}" if sends else f"{other} is handing over",
        "done": f"{other} has it" if sends else "received",
        "settled": f"{other} has it, and nothing more is expected of this site",
        "given-up": f"given up: {other} was out of reach",
        "closed": "not used: another way was taken",
    }.get(edge.state, edge.state)


@runs.command("accept")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--yes", is_flag=True, help="Do not ask.")
@state_option
@json_option
def accept_run(file: Path, yes: bool, state: Path, as_json: bool) -> None:
    """Take part in the run of FILE, a plan that an operator has signed and sent: show what it asks, and ask.

    For sites that the operator cannot call, or that want the plan as a file. It is checked as if the operator had
    asked: signature, consent, data, disk, neighbours. Without your yes it stays pending, and can be approved or refused
    later.

    \b
    Example:
      fedelmy-node runs accept clinic.plan
    """
    from fedelmy_node.config.plan_file import read_plan_file
    from fedelmy_node.rpc.admin import admin_client

    if as_json and not yes:
        raise ConfigError("E-CONFIG-VALUE", "--json does not ask", hint="Add --yes.")
    signed = read_plan_file(file)
    with admin_client(state) as client:
        run, _ = client.accept(signed)
        _agree(client, run, state, yes=yes, as_json=as_json)


def _agree(client: AdminClient, run: RunId, state: Path, *, yes: bool, as_json: bool) -> None:
    """Show what a run asks, ask whether this site takes part, and approve exactly what was shown."""
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
        click.echo(f"This site takes part: run {report.run} is {now}. Nothing more to do: the operator starts it.")


def _confirm_part(run: RunId) -> None:
    """Ask. Without a yes the run is still there, so the general "nothing was done" would leave out that it waits."""
    try:
        click.confirm("Does this site take part?", abort=True)
    except click.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise
        click.echo(f"Not confirmed: run {run} stays pending.", err=True)
        raise SystemExit(1) from abort


@runs.command("approve")
@click.argument("run", shell_complete=run_names)
@click.option("--yes", is_flag=True, help="Do not ask.")
@state_option
@json_option
def approve_run(run: str, yes: bool, state: Path, as_json: bool) -> None:
    """Agree to RUN, which is pending: show what it asks of this site, and ask for confirmation.

    What is approved is the plan that is shown. The operator then starts the run; nothing more is asked.

    \b
    Example:
      fedelmy-node runs approve xray-20270301-120000-4f2a
    """
    from fedelmy_node.domain.names import run_id
    from fedelmy_node.rpc.admin import admin_client

    if as_json and not yes:
        raise ConfigError("E-CONFIG-VALUE", "--json does not ask", hint="Add --yes.")
    with admin_client(state) as client:
        _agree(client, run_id(run), state, yes=yes, as_json=as_json)


@runs.command("refuse")
@click.argument("run", shell_complete=run_names)
@click.option("--reason", default="", help="Why; the operator is told.")
@state_option
@json_option
def refuse_run(run: str, reason: str, state: Path, as_json: bool) -> None:
    """Do not agree to RUN: it ends at this site, and the operator is told.

    Only a run that has not begun can be refused.

    \b
    Example:
      fedelmy-node runs refuse xray-20270301-120000-4f2a --reason "the ethics board has not met"
    """
    from fedelmy_node.domain.names import run_id
    from fedelmy_node.rpc.admin import admin_client

    readable = reason.encode("utf-8", "replace").decode()  # a terminal may have passed on half a character
    with admin_client(state) as client:
        now = client.refuse(run_id(run), readable[:400])
    if as_json:
        emit_json({"run": run, "state": now})
    else:
        click.echo(f"Run {run} was refused; the operator is told.")


@runs.command("prune")
@click.argument("names", nargs=-1, metavar="[RUN]...", shell_complete=run_names)
@click.option("--older-than", metavar="DURATION", help="Every run that is over and so old, as 12h or 30d.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@state_option
@json_option
def prune_runs(
    names: tuple[str, ...], older_than: str | None, dry_run: bool, yes: bool, state: Path, as_json: bool
) -> None:
    """Forget runs that are over: their results, logs and pools on this site's disk, and all that is known of them.

    Export a result that you want to keep first (`fedelmy-node model export`). A run that is under way is refused.

    \b
    Examples:
      fedelmy-node runs prune --older-than 30d --dry-run
      fedelmy-node runs prune --older-than 30d --yes
      fedelmy-node runs prune xray-20270301-120000-4f2a
    """
    from fedelmy_node.config.decode import encode
    from fedelmy_node.domain.federation import seconds_of
    from fedelmy_node.domain.names import run_id
    from fedelmy_node.rpc.admin import admin_client

    if bool(names) == (older_than is not None):
        said = "both runs and an age were given" if names else "what is to be pruned?"
        hint = "Give one or more run ids (`fedelmy-node runs list`), or an age: --older-than 30d."
        raise ConfigError("E-CONFIG-VALUE", said, hint=hint)
    if as_json and not (yes or dry_run):
        raise ConfigError("E-CONFIG-VALUE", "--json does not ask", hint="Add --yes or --dry-run.")
    seconds = seconds_of(older_than) if older_than is not None else 0.0
    with admin_client(state) as client:
        found = client.prune([run_id(name) for name in names], seconds, dry_run=True)
        if not as_json:
            _show_pruned(found)
        if found and not dry_run:
            if not yes:
                click.confirm("Forget them for good?", abort=True)
            found = client.prune([run.run for run in found], 0.0, dry_run=False)  # exactly what was shown
    if as_json:
        emit_json({"pruned": not dry_run, "runs": encode(found)})
    elif found and not dry_run:
        click.echo(f"{len(found)} forgotten.")


def _show_pruned(found: tuple[PrunedRun, ...]) -> None:
    from fedelmy_node.domain.narration import bytes_text

    if not found:
        click.echo("Nothing to prune.")
        return
    for run in found:
        click.echo(f"  {run.run:<40} {run.state:<10} {bytes_text(run.size):>10}")
    click.echo(f"  {len(found)} in all, {bytes_text(sum(run.size for run in found))}")
