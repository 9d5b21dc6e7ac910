"""`fedelmy-launch list`: what can be chosen by name on this machine, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import click

from fedelmy_launcher.cli.options import json_option
from fedelmy_node.cli.app import emit_json
from fedelmy_node.config.registry import BUILT_IN, Listed

_KINDS: Final = ("strategies", "topologies", "models", "data", "presets", "experiments")


@click.command("list")
@click.argument("kind", type=click.Choice(_KINDS))
@json_option
def list_command(kind: str, as_json: bool) -> None:
    """List what can be chosen by name, with a description and its origin.

    Installed packages can add to it; see docs/extending.md. Listing does not run their code.

    \b
    Examples:
      fedelmy-launch list strategies
      fedelmy-launch list presets
      fedelmy-launch list models --json
    """
    rows = list(_rows(kind))
    if as_json:
        keys = ("name", "description", "origin", "problem")
        emit_json({kind: [{key: getattr(row, key) for key in keys} for row in rows]})
        return
    for line in _table(rows):
        click.echo(line)
    if not rows:
        click.echo(f"no {kind}")


def _rows(kind: str) -> Iterable[Listed]:
    if kind == "topologies":
        from fedelmy_launcher.plans import topologies

        return topologies.INSTALLED.listing()
    if kind == "strategies":
        from fedelmy_node.training import strategies

        return strategies.INSTALLED.listing()
    if kind == "models":
        from fedelmy_node.training import models

        more = {
            "torchvision:NAME": "any torchvision classifier, with random weights",
            "timm:NAME": "any timm classifier, with random weights; needs the timm package",
            "MODULE:FUNCTION": "a function of the site, listed in its site.toml",
        }
        return (*models.INSTALLED.listing(), *_built_in(more))
    if kind == "data":
        from fedelmy_node.training import data

        more = {"MODULE:FUNCTION": "a function of the site that returns arrays"}
        return (*data.INSTALLED.listing(), *_built_in(more))
    if kind == "presets":
        from fedelmy_node.config.presets import presets

        return _built_in(presets())
    from fedelmy_launcher.experiments import experiments

    return _built_in({name: entry.title for name, entry in experiments().items()})


def _built_in(descriptions: Mapping[str, str]) -> Iterable[Listed]:
    rows = descriptions.items()
    return (Listed(name=name, description=text, origin=BUILT_IN) for name, text in rows)


def _table(rows: Iterable[Listed]) -> Iterable[str]:
    """Columns for name, origin and the wrapped description."""
    import shutil
    import textwrap

    rows = list(rows)
    name = max((len(row.name) for row in rows), default=0)
    origin = max((len(row.origin) for row in rows), default=0)
    width = max(shutil.get_terminal_size().columns - name - origin - 6, 24)
    for row in rows:
        text = row.description + (f" - cannot be used: {row.problem}" if row.problem else "")
        lines = textwrap.wrap(text, width) or [""]
        yield f"  {row.name:<{name}}  {row.origin:<{origin}}  {lines[0]}"
        yield from (" " * (name + origin + 6) + line for line in lines[1:])
