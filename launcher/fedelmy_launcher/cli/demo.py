"""`fedelmy-launch demo`: four sites on one machine, in about a minute."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedelmy_launcher.cli.options import DIRECTORY, json_option
from fedelmy_node.cli.app import emit_json

if TYPE_CHECKING:
    from fedelmy_launcher.control.demo_sites import DemoSite


@click.command()
@click.option(
    "--dir",
    "directory",
    type=DIRECTORY,
    default=Path("fedelmy-demo"),
    show_default=True,
    help="Directory for all files; replaces an earlier demo there.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of the shards and of the training.",
)
@json_option
def demo(directory: Path, seed: int, as_json: bool) -> int:
    """Train one model at four real sites on this machine, over mutually authenticated gRPC.

    Every site is a daemon with its own key, state directory and Dirichlet(0.5) shard of
    scikit-learn's digits. Nothing is downloaded; all files are in --dir.

    \b
    Examples:
      fedelmy-launch demo
      fedelmy-launch demo --seed 7 --json | tail -1
    """
    from fedelmy_launcher.cli.attach import show_answer
    from fedelmy_launcher.control.demo_sites import Daemons, DemoFederation, prepare_directory
    from fedelmy_launcher.control.sites import Sites
    from fedelmy_launcher.control.start_run import prepare_run, start_run
    from fedelmy_launcher.plans.compiler import compile_plan, load_federation, new_run_id
    from fedelmy_launcher.simulate.baselines import every_site_alone
    from fedelmy_launcher.view.history.gather import gather_history
    from fedelmy_launcher.view.progress import RunProgress
    from fedelmy_launcher.view.terminal.follow import follow_run
    from fedelmy_launcher.view.terminal.screen import open_screen
    from fedelmy_node.identity import keystore

    def say(text: str) -> None:
        if not as_json:
            click.echo(text)

    if prepare_directory(directory):
        say(f"     replaced the earlier demo in {directory}")
    federation = DemoFederation(directory.absolute(), seed)
    count = len(federation.sites)
    say(f"1/4  keys, certificates and Dirichlet(0.5) shards for {count} sites in {directory}")
    federation.make()
    with Daemons(federation) as daemons:
        say("2/4  starting one node per site")
        federation.write_file(daemons.start())
        described = load_federation(federation.file)
        plan = compile_plan(described, new_run_id(described))
        progress = RunProgress(plan)
        say(f"3/4  run {plan.run}: {' -> '.join(progress.sites)}")
        with (
            Sites(described, keystore.load(federation.operator)) as sites,
            open_screen(progress, as_json=as_json) as screen,
        ):
            answered = None if as_json else show_answer(progress, screen)
            start_run(sites, plan.run, prepare_run(sites, plan, answered))
            follow_run(sites, progress, screen)
            history, _, _ = gather_history(sites, plan.run)
        say(
            "4/4  for comparison, every site alone (simulated with the same settings and test data)"
        )
        model = directory / "sites" / federation.sites[-1].name / "model.safetensors"
        with _exporting(federation.sites[-1], model):
            found = every_site_alone(described, plan.run, directory.absolute() / "alone")
            alone = {str(site): own.accuracy or 0.0 for site, own in found.items()}
    files = {
        "model": str(model),
        "report": str(directory / "report.json"),
        "page": str(directory / "report.html"),
    }
    return _conclude(progress.result(), history.encoded(), alone, files, as_json=as_json)


@contextmanager
def _exporting(site: DemoSite, model: Path) -> Iterator[None]:
    """Meanwhile export the model at a site, as its administrator would."""
    from fedelmy_node.domain.errors import InternalError

    command = site.command("model", "export", "--out", str(model.absolute()))
    out, err = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(command, stdout=out, stderr=err, text=True) as exporting:
        yield
        _, problem = exporting.communicate()
    if exporting.returncode:
        raise InternalError("E-INTERNAL", f"exporting the model failed: {problem.strip()}")


def _conclude(
    result: dict[str, Any],
    history: dict[str, Any],
    alone: dict[str, float],
    files: dict[str, str],
    *,
    as_json: bool,
) -> int:
    from rich.console import Console
    from rich.table import Table

    from fedelmy_launcher.view.report.page import write_report
    from fedelmy_node.domain.text import bytes_text, percent

    best = max(alone, key=lambda site: alone[site])
    hops = len(result["sites"]) - 1
    extra = {
        "alone": alone,
        "best_alone": {"site": best, "accuracy": alone[best]},
        "paper_bytes": hops * result["bundle_bytes"],
        **files,
    }
    result |= extra
    write_report(history | extra, Path(files["page"]), Path(files["report"]))
    if as_json:
        emit_json(result)
        return 0
    sites = Table(title="What the sites did", title_justify="left", header_style="bold")
    for name in ("site", "state", "trained", "sent", "its test samples", "correct"):
        sites.add_column(name, justify="left" if name in ("site", "state") else "right")
    for site in result["sites"]:
        trained, sent = f"{site['training_seconds']:.1f} s", bytes_text(site["bytes_sent"])
        tested = (str(site["samples"]), percent(site["accuracy"]))
        sites.add_row(site["name"], site["state"], trained, sent, *tested)
    title = f"Correct on the {result['samples']} test samples of all sites"
    compared = Table(title=title, title_justify="left", header_style="bold")
    for name in ("the chain", *(f"{site} alone" for site in alone)):
        compared.add_column(name, justify="right")
    compared.add_row(percent(result["accuracy"]), *map(percent, alone.values()))
    console = Console()
    console.print(sites)
    console.print(compared)
    click.echo(
        f"accuracy    {percent(result['accuracy'])} on the {result['samples']} test samples of all"
        f" sites; the best site alone ({best}) reaches {percent(alone[best])}"
    )
    click.echo(
        f"bytes sent  {result['bytes_sent']} between sites; the paper's (N-1)*M is"
        f" {hops} * {result['bundle_bytes']} = {hops * result['bundle_bytes']}"
    )
    click.echo(f"time        {result['seconds']:.1f} s for the run")
    click.echo(f"model       {files['model']}")
    click.echo(f"report      {files['page']}, and as JSON {files['report']}")
    return 0
