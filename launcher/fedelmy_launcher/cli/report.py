"""`fedelmy-launch report`: a run on one page, with its JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedelmy_launcher.cli import options
from fedelmy_node.cli.app import emit_json
from fedelmy_node.domain.errors import EXIT_SUBSET, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_OUT = "The HTML file; the JSON goes beside it.  [default: RUN.html here]"
_BRIEF = (
    *("run", "federation", "state", "subset", "contributors"),
    *("left_out", "accuracy", "samples", "bundle_sha256"),
)


@click.command()
@options.target_arguments
@click.option("--out", type=options.FILE, help=_OUT)
@click.option(
    "--from", "source", type=options.FILE, help="Draw the page from a RUN.json, without sites."
)
@options.operator_options
@options.json_option
def report(
    given: options.Given,
    out: Path | None,
    source: Path | None,
    operator: options.Operator,
    as_json: bool,
) -> int:
    """Write a one-page report of RUN of FEDERATION (default: federation.toml), with its JSON.

    All sites are asked for their journals; the report names those that do not answer. A run that is
    active, failed or cancelled has a report, too. The page needs no network and no scripts, and
    prints on A4.

    Exit code 0: the report was written; 20: the run ended on a subset of its sites.

    \b
    Examples:
      fedelmy-launch report
      fedelmy-launch report federation.toml xray-20270301-120000-4f2a --out march.html
      fedelmy-launch report xray-20270301-120000-4f2a --at north.example:50051
      fedelmy-launch report --from march.json --out again.html
    """
    from fedelmy_launcher.view.report.headline import headline
    from fedelmy_launcher.view.report.page import read_history, write_page, write_report

    if out is not None and not out.parent.is_dir():
        message = f"--out: {out.parent} is not a directory"
        raise ConfigError("E-CONFIG-VALUE", message, hint="Create it, or choose another one.")
    if source is not None:
        if any(given):
            message = "--from cannot be combined with a federation, a run or --at"
            raise ConfigError("E-CONFIG-VALUE", message)
        history = read_history(source)
        html, data = out or source.with_suffix(".html"), source
        if html.exists() and html.samefile(source):
            message = f"the page would overwrite its data in {html}"
            raise ConfigError("E-CONFIG-VALUE", message, hint="Choose another --out.")
        write_page(history, html)
    else:
        target = options.target_of(*given)
        sites, federation = options.open_sites(target, operator())
        with sites:
            from fedelmy_launcher.control.find_run import find_run
            from fedelmy_launcher.view.history.gather import gather_history

            found, _, _ = gather_history(sites, find_run(sites, target.run, federation))
        history = found.encoded()
        html = out or Path(f"{found.run}.html")
        data = html.with_suffix(".json")
        if data == html:
            raise ConfigError("E-CONFIG-VALUE", f"the JSON would overwrite the page {html}")
        write_report(history, html, data)
    if as_json:
        emit_json(_brief(history) | {"html": str(html), "json": str(data)})
    else:
        click.echo(headline(history))
        for site in history["sites"]:
            if site["silence"]:
                problem = f"{site['silence']['code']}: {site['silence']['message']}"
                click.echo(f"  {site['name']} did not answer: {problem}")
        click.echo(f"page        {html}")
        click.echo(f"data        {data}")
    return EXIT_SUBSET if history["state"] == "done" and history["subset"] else 0


def _brief(history: Mapping[str, Any]) -> dict[str, Any]:
    """A summary for --json; the file has everything."""
    silent = [site["name"] for site in history["sites"] if site["silence"]]
    brief = {key: history[key] for key in _BRIEF}
    return brief | {"silent": silent, "warnings": len(history["warnings"])}
