"""The page and the file beside it: written whole, read back with care."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import TemplateError
from markupsafe import Markup

from fedelmy_launcher.history import FORMAT
from fedelmy_launcher.report.outcome_text import headline
from fedelmy_launcher.report.sections import sections
from fedelmy_launcher.report.templating import render
from fedelmy_node import __version__
from fedelmy_node.config.strict_json import parse_json
from fedelmy_node.domain.texts import clean_all
from fedelmy_node.durable import write_durably
from fedelmy_node.errors import ConfigError

__all__ = ["page", "style", "write_report", "write_page", "read_history"]

_MODE: Final = 0o644
_MOST_VALUES: Final = 50_000_000
"""In a RUN.json: more than a hundred sites with a thousand epochs of ten members have."""
_TEXT_CHARACTERS: Final = 4096
"""Longer than any text that a report has."""


def style() -> str:
    """The style sheet of the page; the dashboard uses it, too."""
    return (Path(__file__).parent / "templates" / "report.css").read_text("utf-8")


def page(history: Mapping[str, Any]) -> str:
    """One HTML file that needs nothing else: no script, no network."""
    parts = sections(history)
    return render(
        "page.html.j2", history=history, parts=[(part, Markup(part.html)) for part in parts],  # noqa: S704
        style=Markup(style()), headline=headline(history), version=__version__,  # noqa: S704
    )  # fmt: skip


def write_report(history: Mapping[str, Any], html: Path, data: Path) -> None:
    """Both files, each there whole or not at all."""
    write_durably(data, json.dumps(history, indent=1).encode() + b"\n", _MODE)
    write_page(history, html)


def write_page(history: Mapping[str, Any], html: Path) -> None:
    """The page alone. A history from a file may have been edited: whatever it lacks is named."""
    try:
        text = page(history)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, TemplateError) as error:
        message = f"the history of the run is not whole ({type(error).__name__})"
        raise ConfigError("E-CONFIG-VALUE", message, hint="Write the report again from the sites.") from error
    write_durably(html, text.encode(), _MODE)


def read_history(path: Path) -> dict[str, Any]:
    """What `write_report` wrote. The file may come from anywhere: it is read as strictly as a message of a site."""
    try:
        history = parse_json(path.read_bytes(), _MOST_VALUES)
    except OSError as error:
        hint = "Name the JSON file that `fedelmy-launch report` wrote beside its page."
        raise ConfigError("E-CONFIG-MISSING", f"{path} cannot be read: {error.strerror}", hint=hint) from error
    except ValueError as error:
        hint = "Give the RUN.json of a report."
        raise ConfigError("E-CONFIG-VALUE", f"{path} is not JSON that can be used: {error}", hint=hint) from error
    if not isinstance(history, dict) or history.get("format") != FORMAT:
        hint = "Give the RUN.json that `fedelmy-launch report` wrote beside its HTML."
        raise ConfigError("E-CONFIG-VALUE", f"{path} is not a report of format {FORMAT}", hint=hint)
    cleaned: dict[str, Any] = clean_all(history, _TEXT_CHARACTERS)
    return cleaned
