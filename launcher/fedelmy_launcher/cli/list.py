"""`fedelmy-launch list`: what can be chosen by name on this machine, and whose it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import click

from fedelmy_launcher.cli.options import json_option
from fedelmy_node.cli.frame import emit_json
from fedelmy_node.config.registry import BUILT_IN, Listed

__all__ = ["list_command"]

_KINDS: Final = ("strategies", "topologies", "models", "data", "presets", "experiments")


@click.command("list")
@click.argument("kind", type=click.Choice(_KINDS))
@json_option
def list_command(kind: str, as_json: bool) -> None:
    """Show what can be chosen by name: one line on each, and where it comes from.

    What is not built in was added by an installed package; docs/extending.md says how. Nothing of a package is run to
    list it.

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
        from fedelmy_launcher import topologies

        return topologies.INSTALLED.listing()
    if kind == "strategies":
        from fedelmy_node.training import strategies

        return strategies.INSTALLED.listing()
    if kind == "models":
        from fedelmy_node.training import models

        more = {
            "torchvision:NAME": "any classifier of torchvision by its name there, with random weights",
            "MODULE:FUNCTION": "a function of a site's own, where site.toml lists it",
        }
        return (*models.INSTALLED.listing(), *_built_in(more))
    if kind == "data":
        from fedelmy_node.training import data

        more = {"MODULE:FUNCTION": "a function of the site's own, which gives arrays"}
        return (*data.INSTALLED.listing(), *_built_in(more))
    if kind == "presets":
        from fedelmy_node.config.presets import presets

        return _built_in(presets())
    from fedelmy_launcher.experiments import experiments

    return _built_in({name: entry.title for name, entry in experiments().items()})


def _built_in(descriptions: Mapping[str, str]) -> Iterable[Listed]:
    return (Listed(name=name, description=text, origin=BUILT_IN) for name, text in descriptions.items())


def _table(rows: Iterable[Listed]) -> Iterable[str]:
    """Name, origin and description; the last one is wrapped under itself."""
    import shutil
    import textwrap

    rows = list(rows)
    name, origin = (max((len(getattr(row, key)) for row in rows), default=0) for key in ("name", "origin"))
    width = max(shutil.get_terminal_size().columns - name - origin - 6, 24)
    for row in rows:
        text = row.description + (f" - cannot be used: {row.problem}" if row.problem else "")
        lines = textwrap.wrap(text, width) or [""]
        yield f"  {row.name:<{name}}  {row.origin:<{origin}}  {lines[0]}"
        yield from (" " * (name + origin + 6) + line for line in lines[1:])
