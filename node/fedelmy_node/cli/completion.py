"""Shell completion: the scripts for shells, and the completion of arguments.

Completion runs while a user waits, so it has a short time limit, few imports, and no errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

_SHELLS: Final = ("bash", "zsh", "fish")
_ASK_SECONDS: Final = 1.0


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, options, runs and files in a shell.

    Save it as shown, then open a new shell. fedelmy-launch has the same command. For the current
    session only: source <(fedelmy-node completion bash)

    \b
    Examples:
      fedelmy-node completion bash > ~/.local/share/bash-completion/completions/fedelmy-node
      fedelmy-node completion zsh > "${fpath[1]}/_fedelmy-node"
      fedelmy-node completion fish > ~/.config/fish/completions/fedelmy-node.fish
    """
    root = ctx.find_root().command
    name = root.name or ""
    maker = get_completion_class(shell)
    assert maker is not None, "click supports these shells"
    script = maker(root, {}, name, f"_{name.replace('-', '_').upper()}_COMPLETE")
    click.echo(script.source_template % script.source_vars())


def complete_runs(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the runs of the daemon of this state directory."""
    from fedelmy_node.cli.options import state_of
    from fedelmy_node.domain.errors import FedelmyError
    from fedelmy_node.rpc.clients import admin_client

    given = {name for name in ctx.params.get(parameter.name or "") or () if parameter.nargs == -1}
    try:
        with admin_client(Path(ctx.params.get("state") or state_of())) as client:
            found = client.runs(_ASK_SECONDS)
    except (FedelmyError, OSError):
        return []
    known = [run for run in found if run.run.startswith(incomplete) and run.run not in given]
    return [CompletionItem(run.run, help=run.state.value) for run in known]


def complete_data(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the kinds of data; the path after the colon is left to the shell."""
    from fedelmy_node.training.data import SOURCES

    kinds = {f"{name}:" if kind.path else name: kind.description for name, kind in SOURCES.items()}
    found = ((kind, text) for kind, text in kinds.items() if kind.startswith(incomplete))
    return [CompletionItem(kind, help=text) for kind, text in found]


def complete_device(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return _plain(("auto", "cpu", "cuda"), incomplete)


def complete_federation(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete federation files and directories."""
    folder, _, begin = incomplete.rpartition("/")
    place = Path(f"{folder}/" if folder or incomplete.startswith("/") else ".")
    try:
        entries = sorted(place.expanduser().iterdir())
    except OSError:
        return []
    names = [
        f"{entry.name}/" if entry.is_dir() else entry.name
        for entry in entries
        if entry.is_dir() or entry.suffix == ".toml"
    ]
    prefix = f"{folder}/" if "/" in incomplete else ""
    hidden = begin.startswith(".")
    shown = [f"{prefix}{name}" for name in names if hidden or not name.startswith(".")]
    return _plain(shown, incomplete)


def _plain(values: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(value) for value in values if value.startswith(incomplete)]
