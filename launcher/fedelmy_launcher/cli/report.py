"""`fedelmy-launch report`: a run on one page, and the same for machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from fedelmy_node.errors import EXIT_SUBSET, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["report"]


@click.command()
@target_arguments
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page; the JSON goes beside it.  [default: RUN.html here]",
)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the page again from a RUN.json; no site is asked.",
)
@operator_options
@json_option
def report(
    words: tuple[str, ...], run_name: str | None, at: str | None, out: Path | None, source: Path | None,
    identity: Path, insecure: bool, as_json: bool,
) -> int:  # fmt: skip
    """Write RUN of FEDERATION (default: federation.toml) onto one page, with its JSON beside it.

    Every site is asked for what it has journaled; those that do not answer are named in the report. A run that goes
    on, failed or was cancelled has a report, too. The page needs no network and no scripts, and prints on A4.

    Exit code 0: it was written; 20: the run is over, on a subset of its sites.

    \b
    Examples:
      fedelmy-launch report
      fedelmy-launch report federation.toml xray-20270301-120000-4f2a --out march.html
      fedelmy-launch report xray-20270301-120000-4f2a --at north.example:50051
      fedelmy-launch report --from march.json --out again.html
    """
    from fedelmy_launcher.report.outcome_text import headline
    from fedelmy_launcher.report.page import read_history, write_page, write_report

    if out is not None and not out.parent.is_dir():
        raise ConfigError(
            "E-CONFIG-VALUE", f"--out: {out.parent} is not a directory", hint="Make it, or write elsewhere."
        )
    if source is not None:
        if words or run_name or at:
            raise ConfigError("E-CONFIG-VALUE", "--from is a whole run: no federation, run or --at beside it")
        history = read_history(source)
        html, data = out or source.with_suffix(".html"), source
        if html.exists() and html.samefile(source):
            raise ConfigError(
                "E-CONFIG-VALUE", f"{html} is the data; the page would take its place", hint="Name --out."
            )
        write_page(history, html)
    else:
        target = target_of(words, run_name, at)
        sites, federation = open_sites(target, load_operator(identity, insecure))
        with sites:
            from fedelmy_launcher.history.gathering import gather_history

            found, _, _ = gather_history(sites, find_run(sites, target.run, federation))
        history = found.encoded()
        html = out or Path(f"{found.run}.html")
        data = html.with_suffix(".json")
        if data == html:
            raise ConfigError("E-CONFIG-VALUE", f"{html} is the page; its JSON could not be beside it")
        write_report(history, html, data)
    if as_json:
        emit_json(_brief(history) | {"html": str(html), "json": str(data)})
    else:
        click.echo(headline(history))
        for site in history["sites"]:
            if site["silence"]:
                click.echo(f"  {site['name']} did not answer: {site['silence']['code']}: {site['silence']['message']}")
        click.echo(f"page        {html}")
        click.echo(f"data        {data}")
    return EXIT_SUBSET if history["state"] == "done" and history["subset"] else 0


def _brief(history: Mapping[str, Any]) -> dict[str, Any]:
    """For machines that want to know what was written; all of it is in the file."""
    keys = ("run", "federation", "state", "subset", "contributors", "left_out", "accuracy", "samples", "bundle_sha256")
    silent = [site["name"] for site in history["sites"] if site["silence"]]
    return {key: history[key] for key in keys} | {"silent": silent, "warnings": len(history["warnings"])}
