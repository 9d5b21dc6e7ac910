"""Write the report page and its JSON file; read the JSON file back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import TemplateError
from markupsafe import Markup

from fedelmy_launcher.view.history.fold import FORMAT
from fedelmy_launcher.view.report.headline import headline
from fedelmy_launcher.view.report.rendering import render
from fedelmy_launcher.view.report.sections import sections
from fedelmy_node import __version__
from fedelmy_node.config.decode import parse_json
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.text import clean_all
from fedelmy_node.store.durable_files import write_durably

_MODE: Final = 0o644
_MAX_VALUES: Final = 50_000_000
"""In a RUN.json; a hundred sites with a thousand epochs of ten members have fewer."""
_TEXT_CHARACTERS: Final = 4096
"""Longer than any text of a report."""
_BROKEN: Final = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    TemplateError,
)


def style() -> str:
    """The style sheet of the page and of the dashboard's sections."""
    return (Path(__file__).parent / "templates" / "report.css").read_text("utf-8")


def page(history: Mapping[str, Any]) -> str:
    """A self-contained HTML file without scripts or external resources."""
    parts = sections(history)
    return render(
        "page.html.j2",
        history=history,
        parts=[(part, Markup(part.html)) for part in parts],  # noqa: S704
        style=Markup(style()),  # noqa: S704
        headline=headline(history),
        version=__version__,
    )


def write_report(history: Mapping[str, Any], html: Path, data: Path) -> None:
    """Write both files, each atomically."""
    write_durably(data, json.dumps(history, indent=1).encode() + b"\n", _MODE)
    write_page(history, html)


def write_page(history: Mapping[str, Any], html: Path) -> None:
    """Write only the page; a history from a file may be incomplete, which raises ConfigError."""
    try:
        text = page(history)
    except _BROKEN as error:
        message = f"the history of the run is incomplete ({type(error).__name__})"
        hint = "Create the report again from the sites."
        raise ConfigError("E-CONFIG-VALUE", message, hint=hint) from error
    write_durably(html, text.encode(), _MODE)


def read_history(path: Path) -> dict[str, Any]:
    """Read what `write_report` wrote, as strictly as a message from another site."""
    hint = "Use the RUN.json that `fedelmy-launch report` wrote next to its HTML page."
    try:
        history = parse_json(path.read_bytes(), _MAX_VALUES)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise ConfigError("E-CONFIG-MISSING", message, hint=hint) from error
    except ValueError as error:
        raise ConfigError(
            "E-CONFIG-VALUE", f"{path} is not valid JSON: {error}", hint=hint
        ) from error
    if not isinstance(history, dict) or history.get("format") != FORMAT:
        raise ConfigError("E-CONFIG-VALUE", f"{path} is not a report of format {FORMAT}", hint=hint)
    cleaned: dict[str, Any] = clean_all(history, _TEXT_CHARACTERS)
    return cleaned
