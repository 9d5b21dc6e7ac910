"""`fedelmy-launch partition`: one dataset as several sites, for experiments and demos."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from fedelmy_launcher.cli.options import json_option
from fedelmy_node.cli.frame import emit_json
from fedelmy_node.cli.options import data_kinds

__all__ = ["partition"]


@click.command()
@click.argument("source", metavar="KIND[:PATH]", shell_complete=data_kinds)
@click.option("--site", "sites", multiple=True, required=True, metavar="NAME", help="A site; repeat for each.")
@click.option(
    "--method",
    type=click.Choice(["iid", "dirichlet"]),
    default="dirichlet",
    show_default=True,
    help="Evenly, or with classes that are uneven among the sites.",
)
@click.option("--alpha", type=float, help="Skew of dirichlet: the smaller, the more uneven.  [default: 0.5]")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same parts.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("parts"),
    show_default=True,
    help="Where the indices files go.",
)
@json_option
def partition(
    source: str, sites: tuple[str, ...], method: Literal["iid", "dirichlet"], alpha: float | None, seed: int,
    out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Split the training samples of a dataset among sites and write one indices file each.

    \b
    Examples:
      fedelmy-launch partition digits --site north --site south --site west
      fedelmy-launch partition cifar10:/data/cifar --site a --site b --alpha 0.1 --seed 3 --out parts
    """
    from fedelmy_launcher.partition import write_partition

    written = write_partition(source, sites, method=method, alpha=alpha, seed=seed, out_dir=out)
    counts = [dict(zip(written.classes, row, strict=True)) for row in written.counts]
    if as_json:
        files = [str(path) for path in written.paths]
        emit_json({"sites": dict(zip(sites, files, strict=True)), "counts": dict(zip(sites, counts, strict=True))})
        return
    for path, row in zip(written.paths, counts, strict=True):
        held = ", ".join(f"{name} {count}" for name, count in row.items() if count)
        click.echo(f"  {path!s:<24} {sum(row.values()):>6} samples: {held}")
