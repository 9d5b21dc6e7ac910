"""`fedelmy-node weights`: the files that models may start from; needs no daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fedelmy_node.cli.app import emit_json
from fedelmy_node.cli.options import config_option, json_option, state_option

F = TypeVar("F", bound=Callable[..., Any])


def _place_options(function: F) -> F:
    option = click.option(
        "--weights",
        "directory",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="FEDELMY_WEIGHTS",
        show_envvar=True,
        help="Directory with weights files.  [default: as in site.toml, else STATE/weights]",
    )
    return option(state_option(config_option(json_option(function))))


@click.group()
def weights() -> None:
    """Import and list the weights that models may start from.

    A plan names a file and its SHA-256, and never contains it: every site imports its own copy.

    \b
    Examples:
      fedelmy-node weights import resnet18-f37072fd.pth --name resnet18.safetensors
      fedelmy-node weights list
    """


@weights.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--name",
    metavar="NAME.safetensors",
    help="Name to store it under.  [default: the name of FILE]",
)
@_place_options
def import_file(
    file: Path,
    name: str | None,
    directory: Path | None,
    state: Path,
    config: Path | None,
    as_json: bool,
) -> None:
    """Store FILE (a torch state dict or safetensors) as safetensors, and print its digest.

    Nothing in FILE is executed: a file that contains anything but tensors is refused.

    \b
    Examples:
      fedelmy-node weights import backbone.pth
      fedelmy-node weights import backbone.safetensors --name xray-backbone.safetensors --json
    """
    from fedelmy_node.domain.text import bytes_text
    from fedelmy_node.training.models.weights_import import import_weights

    found = import_weights(file, _directory(directory, state, config), name)
    if as_json:
        emit_json(_row(found))
        return
    click.echo(f"{found.path}: {found.tensors} tensors, {bytes_text(found.size)}")
    click.echo("For federation.toml:")
    click.echo("  [model]")
    click.echo(f'  weights = {{ file = "{found.path.name}", sha256 = "{found.sha256}" }}')


@weights.command("list")
@_place_options
def list_files(directory: Path | None, state: Path, config: Path | None, as_json: bool) -> None:
    """List the files of this site with their digests.

    \b
    Examples:
      fedelmy-node weights list
    """
    from fedelmy_node.training.models.weights_import import list_weights

    place = _directory(directory, state, config)
    files = list_weights(place)
    if as_json:
        emit_json({"weights": [_row(found) for found in files]})
        return
    for found in files:
        click.echo(f"{found.sha256}  {found.path.name}")
    if not files:
        click.echo(f"no weights in {place}")


def _directory(directory: Path | None, state: Path, config: Path | None) -> Path:
    from fedelmy_node.config.site_file import Given, load_site_config

    return load_site_config(Given(state=state, config=config, weights=directory)).weights


def _row(found: Any) -> dict[str, Any]:
    return {
        "file": str(found.path),
        "name": found.path.name,
        "sha256": found.sha256,
        "tensors": found.tensors,
        "bytes": found.size,
    }
