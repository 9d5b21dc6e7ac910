"""Options that several commands of a node have."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedelmy_node.config.site import default_state

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = [
    "state_option", "json_option", "state_flag", "state_of", "run_names", "data_kinds", "devices", "site_options",
    "config_option", "insecure_options",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


def state_option(function: F) -> F:
    return click.option(
        "--state",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="FEDELMY_STATE",
        default=default_state,
        show_default="~/.local/state/fedelmy",
        show_envvar=True,
        help="The site's state directory.",
    )(function)


def state_of() -> Path:
    """The state directory that a command without --state uses."""
    return Path(os.environ["FEDELMY_STATE"]) if os.environ.get("FEDELMY_STATE") else default_state()


def run_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For `shell_complete`: the runs of this node; loaded only when somebody completes."""
    from fedelmy_node.cli.completion import complete_runs

    return complete_runs(ctx, parameter, incomplete)


def data_kinds(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For `shell_complete`: the kinds of data."""
    from fedelmy_node.cli.completion import complete_data

    return complete_data(ctx, parameter, incomplete)


def devices(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For `shell_complete`: what can be trained on."""
    from fedelmy_node.cli.completion import complete_device

    return complete_device(ctx, parameter, incomplete)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")(function)


def state_flag(state: Path) -> str:
    """What a command that is printed needs to lead to this state directory again, if anything."""
    return "" if state == default_state() or "FEDELMY_STATE" in os.environ else f" --state {state}"


def site_options(function: F) -> F:
    """What a site is and has, as `serve` runs it and `doctor` looks at it."""
    options = (
        click.option(
            "--peer",
            "peers",
            multiple=True,
            metavar="[SITE=]HOST:PORT[/SITE]",
            envvar="FEDELMY_PEER",
            show_envvar=True,
            help="A site that this one agrees to send to, and where. Repeatable.",
        ),
        click.option(
            "--data",
            metavar="KIND[:PATH]",
            shell_complete=data_kinds,
            envvar="FEDELMY_DATA",
            show_envvar=True,
            help="This site's data, such as imagefolder:/data/xray or digits.",
        ),
        click.option(
            "--indices",
            type=click.Path(path_type=Path),
            envvar="FEDELMY_INDICES",
            show_envvar=True,
            help="Take only the samples that this file names (see fedelmy-launch partition).",
        ),
        click.option(
            "--listen",
            metavar="HOST:PORT",
            envvar="FEDELMY_LISTEN",
            show_envvar=True,
            help="Where to listen.  [default: 0.0.0.0:50051]",
        ),
        click.option(
            "--advertise",
            metavar="HOST:PORT",
            envvar="FEDELMY_ADVERTISE",
            show_envvar=True,
            help="Where others reach this node, if not where it listens: behind NAT, a proxy or a container's port.",
        ),
        click.option(
            "--device",
            metavar="auto|cpu|cuda[:N]",
            shell_complete=devices,
            envvar="FEDELMY_DEVICE",
            show_envvar=True,
            help="What to train on.  [default: auto]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def insecure_options(function: F) -> F:
    """--insecure and --site."""
    options = (
        click.option(
            "--insecure", is_flag=True, help="No TLS at all: for a trial on one machine, never across a network."
        ),
        click.option("--site", metavar="NAME", help="This site's name; needed only with --insecure."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def config_option(function: F) -> F:
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        envvar="FEDELMY_CONFIG",
        show_envvar=True,
        help="The site's settings.  [default: site.toml in the state directory, if it is there]",
    )(function)
