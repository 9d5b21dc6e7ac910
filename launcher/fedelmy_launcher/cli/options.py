"""Options that several commands of the launcher have, and the identity that they lead to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedelmy_node.errors import RunError

if TYPE_CHECKING:
    from fedelmy_launcher.control import Sites
    from fedelmy_node.domain.names import RunId
    from fedelmy_node.identity.keystore import Identity

__all__ = ["federation_argument", "operator_options", "run_option", "json_option", "load_operator", "find_run"]

F = TypeVar("F", bound=Callable[..., Any])


def federation_argument(function: F) -> F:
    return click.argument("federation", type=click.Path(path_type=Path, dir_okay=False), default="federation.toml")(
        function
    )


def operator_options(function: F) -> F:
    """--identity and --insecure."""
    insecure = click.option("--insecure", is_flag=True, help="No TLS: only for nodes that were started so, too.")
    identity = click.option(
        "--identity",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="FEDELMY_IDENTITY",
        default=Path("federation-ca/operator"),
        show_default=True,
        show_envvar=True,
        help="The operator's key and certificate.",
    )
    return identity(insecure(function))


def run_option(help_text: str) -> Callable[[F], F]:
    return click.option("--run", "run_name", metavar="RUN", help=help_text)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="One JSON object per line, for machines.")(function)


def load_operator(directory: Path, insecure: bool) -> Identity | None:
    """The operator's identity; None only if --insecure says so."""
    from fedelmy_node.identity import keystore

    return None if insecure else keystore.load(directory)


def find_run(sites: Sites, name: str | None, federation: str) -> RunId:
    """The run that was named, or the newest one of this federation that any site knows."""
    from fedelmy_launcher.control import refused
    from fedelmy_node.domain.events import RunState
    from fedelmy_node.domain.names import run_id

    if name is not None:
        return run_id(name)
    nodes, unreachable = sites.describe()
    known = [run for node in nodes.values() for run in node.runs if run.federation == federation]
    if known:
        # A run that was withdrawn or cancelled is shown only if there is nothing else.
        return max(known, key=lambda run: (run.state != RunState.CANCELLED, run.changed_at)).run
    if unreachable:
        raise refused(unreachable)
    raise RunError("E-RUN-UNKNOWN", f"no site knows a run of {federation}", hint="Start one with `fedelmy-launch run`.")
