"""`fedelmy-launch partition`: split one dataset among sites, for experiments and demos."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from fedelmy_launcher.cli.options import DIRECTORY, json_option
from fedelmy_node.cli.app import emit_json
from fedelmy_node.cli.options import data_kinds

_SITE = "A site; repeat for each."
_ALPHA = "Skew of dirichlet: smaller is more uneven.  [default: 0.5]"


@click.command()
@click.argument("source", metavar="KIND[:PATH]", shell_complete=data_kinds)
@click.option("--site", "sites", multiple=True, required=True, metavar="NAME", help=_SITE)
@click.option(
    "--method",
    type=click.Choice(["iid", "dirichlet"]),
    default="dirichlet",
    show_default=True,
    help="iid: equal distributions; dirichlet: label skew between the sites.",
)
@click.option("--alpha", type=float, help=_ALPHA)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the partition.")
@click.option(
    "--out",
    type=DIRECTORY,
    default=Path("parts"),
    show_default=True,
    help="Directory for the indices files.",
)
@json_option
def partition(
    source: str,
    sites: tuple[str, ...],
    method: Literal["iid", "dirichlet"],
    alpha: float | None,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Split the training samples of a dataset among sites and write one indices file each.

    \b
    Examples:
      fedelmy-launch partition digits --site north --site south --site west
      fedelmy-launch partition cifar10:/data/cifar --site a --site b --alpha 0.1 --seed 3
    """
    from fedelmy_launcher.simulate.partition import write_partition

    written = write_partition(source, sites, method=method, alpha=alpha, seed=seed, out_dir=out)
    counts = [dict(zip(written.classes, row, strict=True)) for row in written.counts]
    if as_json:
        files = dict(zip(sites, map(str, written.paths), strict=True))
        emit_json({"sites": files, "counts": dict(zip(sites, counts, strict=True))})
        return
    for path, row in zip(written.paths, counts, strict=True):
        held = ", ".join(f"{name} {count}" for name, count in row.items() if count)
        click.echo(f"  {path!s:<24} {sum(row.values()):>6} samples: {held}")
