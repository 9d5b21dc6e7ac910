"""Options shared by several commands of a node."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedelmy_node.config.site_file import default_state

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


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
    """Return the state directory of a command without --state."""
    return Path(os.environ["FEDELMY_STATE"]) if os.environ.get("FEDELMY_STATE") else default_state()


def run_names(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete runs; imports `completion` only when it is needed, as the next two do."""
    from fedelmy_node.cli.completion import complete_runs

    return complete_runs(ctx, parameter, incomplete)


def data_kinds(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from fedelmy_node.cli.completion import complete_data

    return complete_data(ctx, parameter, incomplete)


def devices(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from fedelmy_node.cli.completion import complete_device

    return complete_device(ctx, parameter, incomplete)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def state_flag(state: Path) -> str:
    """Return the --state flag that a printed command needs, if any."""
    return "" if state == default_state() or "FEDELMY_STATE" in os.environ else f" --state {state}"


def _site_option(envvar: str, *names: str, **more: Any) -> Callable[[F], F]:
    return click.option(*names, envvar=envvar, show_envvar=True, **more)


_ADVERTISE = "Address for other sites, if different: behind NAT, a proxy or a container."
_INDICES = "Use only the samples listed in this file (see fedelmy-launch partition)."


def site_options(function: F) -> F:
    """Options that `serve` and `doctor` share."""
    data = "This site's data, such as imagefolder:/data/xray or digits."
    address = "Address to listen on.  [default: 0.0.0.0:50051]"
    options = (
        _site_option(
            "FEDELMY_PEER",
            *("--peer", "peers"),
            multiple=True,
            metavar="[SITE=]HOST:PORT[/SITE]",
            help="A site that this one may send to. Repeatable.",
        ),
        _site_option(
            "FEDELMY_DATA", "--data", metavar="KIND[:PATH]", shell_complete=data_kinds, help=data
        ),
        _site_option(
            "FEDELMY_INDICES", "--indices", type=click.Path(path_type=Path), help=_INDICES
        ),
        _site_option(
            "FEDELMY_WEIGHTS",
            "--weights",
            type=click.Path(path_type=Path, file_okay=False),
            help="Directory of the weights that models start from.  [default: STATE/weights]",
        ),
        _site_option("FEDELMY_LISTEN", "--listen", metavar="HOST:PORT", help=address),
        _site_option("FEDELMY_ADVERTISE", "--advertise", metavar="HOST:PORT", help=_ADVERTISE),
        _site_option(
            "FEDELMY_DEVICE",
            "--device",
            metavar="auto|cpu|cuda[:N]",
            shell_complete=devices,
            help="Device for training.  [default: auto]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def insecure_options(function: F) -> F:
    insecure = "Disable TLS. Only for tests on a single machine, never across a network."
    name = "This site's name; only with --insecure."
    function = click.option("--site", metavar="NAME", help=name)(function)
    return click.option("--insecure", is_flag=True, help=insecure)(function)


def config_option(function: F) -> F:
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        envvar="FEDELMY_CONFIG",
        show_envvar=True,
        help="The site's settings.  [default: site.toml in the state directory, if it exists]",
    )(function)
