"""Options that several commands of a node have."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fedelmy_node.config.site import default_state

__all__ = ["state_option", "json_option", "state_flag"]

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


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")(function)


def state_flag(state: Path) -> str:
    """What a command that is printed needs to lead to this state directory again, if anything."""
    return "" if state == default_state() or "FEDELMY_STATE" in os.environ else f" --state {state}"
