"""`fedelmy-launch run`: prepare everywhere, start, and follow; or only follow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from fedelmy_launcher.cli.options import (
    Target,
    at_option,
    described_federation,
    federation_file,
    federation_files,
    head_option,
    json_option,
    load_operator,
    open_sites,
    operator_options,
    run_option,
)
from fedelmy_node.errors import ConfigError

if TYPE_CHECKING:
    from fedelmy_launcher.live.screen import Screen
    from fedelmy_node.domain.federation import Federation
    from fedelmy_node.domain.names import SiteName
    from fedelmy_node.identity.keystore import Identity

    Operator = Callable[[], Identity | None]
    """Loaded only once the files and names are right."""

__all__ = ["run_command"]


@click.command("run")
@click.argument(
    "federation",
    type=click.Path(path_type=Path, dir_okay=False),
    required=False,
    shell_complete=federation_files,
)
@run_option("Take this run up again, or give a new one its name.")
@click.option("--attach", metavar="RUN", help="Follow this run from any machine; nothing is prepared or started.")
@click.option(
    "--plan", "plans", type=click.Path(path_type=Path, file_okay=False), metavar="DIRECTORY",
    help="The run whose plans `fedelmy-launch plan --out` has written there.",
)  # fmt: skip
@click.option(
    "--accepted", multiple=True, metavar="SITE",
    help="With --plan: a site that has accepted its file and cannot be asked. Repeatable.",
)  # fmt: skip
@head_option
@at_option
@operator_options
@json_option
def run_command(
    federation: Path | None, run_name: str | None, attach: str | None, plans: Path | None, accepted: tuple[str, ...],
    head: str | None, at: str | None, identity: Path, insecure: bool, as_json: bool,
) -> int:  # fmt: skip
    """Start a run of FEDERATION (default: federation.toml) and follow it to the end.

    Every site is asked first; if one refuses, nothing starts. Where an administrator has to agree, the command waits
    for that; Ctrl-C, and the same command with --run goes on later. Once started, the run needs no launcher:
    Ctrl-C detaches, and the same command with --run follows it again. --attach follows it from any machine
    with an operator's certificate, whether all sites answer or not, and without FEDERATION if --at names a site.

    Exit code 0: done with the work of all sites; 20: done, but on a subset of them.

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
        hint = "Write the plans with `fedelmy-launch plan --out DIRECTORY`, and name it."
        raise ConfigError("E-CONFIG-VALUE", "--accepted goes with --plan DIRECTORY", hint=hint)
    if plans is not None and (attach or run_name or head):
        raise ConfigError("E-CONFIG-VALUE", "--plan names the run", hint="Leave --attach, --run and --head away.")
    if attach is not None:
        if run_name is not None:
            raise ConfigError("E-CONFIG-VALUE", "--attach and --run both name a run", hint="Give only one of them.")
        if head is not None:
            raise ConfigError("E-CONFIG-VALUE", "--head is for a new run", hint="Use --at HOST:PORT with --attach.")
        return _attach(federation, attach, at, lambda: load_operator(identity, insecure), as_json=as_json)
    if at is not None:
        raise ConfigError("E-CONFIG-VALUE", "--at is for --attach", hint="A new run needs a federation file.")
    file = federation or Path("federation.toml")
    described = described_federation(file, head, lambda: load_operator(identity, insecure))
    handed = _Handed(plans, accepted) if plans is not None else None
    return _start(described, run_name, handed, lambda: load_operator(identity, insecure), as_json=as_json)


class _Handed(NamedTuple):
    """Plans that were handed over as files."""

    directory: Path
    accepted: tuple[str, ...]
    """Sites that have theirs and cannot be asked."""


def _start(
    described: Federation, run_name: str | None, handed: _Handed | None, operator: Operator, *, as_json: bool
) -> int:
    from fedelmy_launcher.approvals import await_approvals
    from fedelmy_launcher.cli.attach import follow
    from fedelmy_launcher.control import Sites, prepare_run, start_run
    from fedelmy_launcher.handed import handed_run, known_sites, with_handed_id
    from fedelmy_launcher.plans import compile_plan, new_run_id
    from fedelmy_launcher.progress import RunProgress
    from fedelmy_launcher.site_progress import UNASKED
    from fedelmy_node.domain.names import run_id

    if handed is not None:
        run_name = handed_run(handed.directory)
    plan = compile_plan(described, new_run_id(described) if run_name is None else run_id(run_name))
    if handed is not None:
        plan = with_handed_id(plan, handed.directory)
    unasked = known_sites(handed.accepted, plan) if handed else set()
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

        reports = prepare_run(sites, plan)
        await_approvals(sites, plan.run, reports, tell)
        start_run(sites, plan.run, reports)

    with Sites(described, operator()) as sites:
        for site in unasked:
            del sites.addresses[site]
        return follow(sites, progress, again, begin, as_json=as_json)


def _attach(federation: Path | None, name: str, at: str | None, operator: Operator, *, as_json: bool) -> int:
    from fedelmy_launcher.cli.attach import attach
    from fedelmy_node.domain.names import run_id

    run, where = run_id(name), Target(federation_file(federation, at), at, name)
    with open_sites(where, operator())[0] as sites:
        return attach(sites, run, sys.argv[1:], file=where.federation, as_json=as_json)
