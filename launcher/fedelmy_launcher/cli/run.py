"""`fedelmy-launch run`: prepare at every site, start, and follow; or only follow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from fedelmy_launcher.cli import options
from fedelmy_node.domain.errors import ConfigError

if TYPE_CHECKING:
    from fedelmy_launcher.view.terminal.screen import Screen
    from fedelmy_node.domain.federation import Federation
    from fedelmy_node.domain.names import SiteName

_ATTACH = "Follow this run from any machine; prepare and start nothing."
_PLAN = "Start the run whose plan files `fedelmy-launch plan --out` wrote to this directory."
_ACCEPTED = "With --plan: a site that has accepted its plan file; it is not asked. Repeatable."


@click.command("run")
@click.argument(
    "federation", type=options.FILE, required=False, shell_complete=options.federation_files
)
@options.run_option("Name of a new run, or an existing run to continue.")
@click.option("--attach", metavar="RUN", help=_ATTACH)
@click.option("--plan", "plans", type=options.DIRECTORY, metavar="DIRECTORY", help=_PLAN)
@click.option("--accepted", multiple=True, metavar="SITE", help=_ACCEPTED)
@options.head_option
@options.at_option
@options.operator_options
@options.json_option
def run_command(
    federation: Path | None,
    run_name: str | None,
    attach: str | None,
    plans: Path | None,
    accepted: tuple[str, ...],
    head: str | None,
    at: str | None,
    operator: options.Operator,
    as_json: bool,
) -> int:
    """Start a run of FEDERATION (default: federation.toml) and follow it to the end.

    Every site is asked first; if one refuses, nothing starts. If an administrator has to approve,
    the command waits. Once started, the run needs no launcher: Ctrl-C detaches, and the same
    command with --run follows it again. --attach follows it from any machine with an operator's
    certificate, even if some sites do not answer, and without FEDERATION if --at names a site.

    Exit code 0: done, with contributions of all sites; 20: done on a subset of the sites.

    \b
    Examples:
      fedelmy-launch run federation.toml
      fedelmy-launch run federation.toml --run xray-20270301-120000-4f2a
      fedelmy-launch run --attach xray-20270301-120000-4f2a --at north.example:50051
      fedelmy-launch run federation.toml --head north.example:50051
      fedelmy-launch run federation.toml --plan plans --accepted clinic
      fedelmy-launch run federation.toml --json | tail -1
    """
    if accepted and plans is None:
        hint = "Write the plans with `fedelmy-launch plan --out DIRECTORY`."
        raise ConfigError("E-CONFIG-VALUE", "--accepted needs --plan DIRECTORY", hint=hint)
    if plans is not None and (attach or run_name or head):
        hint = "Omit --attach, --run and --head."
        raise ConfigError("E-CONFIG-VALUE", "--plan names the run", hint=hint)

    if attach is not None:
        if run_name is not None:
            message = "--attach and --run both name a run"
            raise ConfigError("E-CONFIG-VALUE", message, hint="Give only one of them.")
        if head is not None:
            hint = "Use --at HOST:PORT with --attach."
            raise ConfigError("E-CONFIG-VALUE", "--head is for a new run", hint=hint)
        return _attach(federation, attach, at, operator, as_json=as_json)
    if at is not None:
        hint = "A new run needs a federation file."
        raise ConfigError("E-CONFIG-VALUE", "--at is for --attach", hint=hint)
    described = options.described_federation(federation or Path("federation.toml"), head, operator)
    files = _PlanFiles(plans, accepted) if plans is not None else None
    return _start(described, run_name, files, operator, as_json=as_json)


class _PlanFiles(NamedTuple):
    directory: Path
    accepted: tuple[str, ...]
    """Sites that accepted their files and are not asked."""


def _start(
    described: Federation,
    run_name: str | None,
    files: _PlanFiles | None,
    operator: options.Operator,
    *,
    as_json: bool,
) -> int:
    from fedelmy_launcher.cli.attach import follow, show_answer
    from fedelmy_launcher.control.approvals import await_approvals
    from fedelmy_launcher.control.sites import Sites
    from fedelmy_launcher.control.start_run import prepare_run, start_run
    from fedelmy_launcher.plans.compiler import compile_plan, new_run_id
    from fedelmy_launcher.plans.plan_files import check_accepted, run_of_files, with_file_id
    from fedelmy_launcher.view.progress import RunProgress
    from fedelmy_launcher.view.site_progress import UNASKED
    from fedelmy_node.domain.names import run_id

    if files is not None:
        run_name = run_of_files(files.directory)
    plan = compile_plan(described, new_run_id(described) if run_name is None else run_id(run_name))
    options.warn_of_recipe(described)
    if files is not None:
        plan = with_file_id(plan, files.directory)
    unasked = check_accepted(files.accepted, plan) if files else set()
    if not as_json:
        click.echo(f"run {plan.run}: asking {len(described.members) - len(unasked)} sites")
    again = [*sys.argv[1:], *(("--run", plan.run) if run_name is None else ())]
    progress = RunProgress(plan)
    for site in unasked:
        progress.sites[site].state, progress.sites[site].gone = UNASKED, True

    def begin(screen: Screen) -> None:
        def tell(site: SiteName, state: str, news: str) -> None:
            progress.sites[site].state = state
            screen.note(news)

        answered = None if as_json else show_answer(progress, screen)
        reports = prepare_run(sites, plan, answered)
        await_approvals(sites, plan.run, reports, tell)
        start_run(sites, plan.run, reports)

    with Sites(described, operator()) as sites:
        for site in unasked:
            del sites.addresses[site]
        return follow(sites, progress, again, begin, as_json=as_json)


def _attach(
    federation: Path | None, name: str, at: str | None, operator: options.Operator, *, as_json: bool
) -> int:
    from fedelmy_launcher.cli.attach import attach
    from fedelmy_node.domain.names import run_id

    run, where = run_id(name), options.Target(options.federation_file(federation, at), at, name)
    with options.open_sites(where, operator())[0] as sites:
        return attach(sites, run, sys.argv[1:], file=where.federation, as_json=as_json)
