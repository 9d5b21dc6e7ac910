"""`fedelmy-launch run`: prepare everywhere, start, and follow."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from fedelmy_launcher.cli.options import (
    federation_argument,
    json_option,
    load_operator,
    operator_options,
    run_option,
)
from fedelmy_node.errors import EXIT_DETACHED

__all__ = ["run_command"]


@click.command("run")
@federation_argument
@run_option("Take this run up again, or give a new one its name.")
@operator_options
@json_option
def run_command(federation: Path, run_name: str | None, identity: Path, insecure: bool, as_json: bool) -> int:
    """Start a run of FEDERATION and follow it to the end.

    Every site is asked first; if one refuses, nothing starts. Once started, the run needs no launcher:
    Ctrl-C detaches, and the same command with --run follows it again.

    \b
    Examples:
      fedelmy-launch run federation.toml
      fedelmy-launch run federation.toml --run xray-20270301-120000-4f2a
      fedelmy-launch run federation.toml --json | tail -1
    """
    from fedelmy_launcher.control import Sites, start_run
    from fedelmy_launcher.federation_file import load_federation
    from fedelmy_launcher.following import follow_run, show_result
    from fedelmy_launcher.plans import compile_plan, new_run_id
    from fedelmy_launcher.progress import RunProgress
    from fedelmy_launcher.screen import open_screen
    from fedelmy_node.domain.names import run_id

    described = load_federation(federation)
    plan = compile_plan(described, new_run_id(described) if run_name is None else run_id(run_name))
    progress = RunProgress(plan)
    started = False
    if not as_json:
        click.echo(f"run {plan.run}: asking {len(described.members)} sites")
    with Sites(described, load_operator(identity, insecure)) as sites:
        try:
            with open_screen(progress, as_json=as_json) as screen:
                start_run(sites, plan)
                started = True
                follow_run(sites, progress, screen)
        except KeyboardInterrupt:
            again = shlex.join([*sys.argv[1:], *(("--run", plan.run) if run_name is None else ())])
            news = "Detached: the run goes on. Follow" if started else "Interrupted before the run was started. Start"
            click.echo(f"\n{news} it with\n  fedelmy-launch {again}", err=True)
            return EXIT_DETACHED
    return show_result(progress, as_json=as_json)
