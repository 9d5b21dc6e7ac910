"""The one template engine, with escaping on, and how templates write times, sizes and shares."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedelmy_node.domain.narration import bytes_text, duration_text, percent

__all__ = ["render"]

_DASH: Final = "\N{EN DASH}"
"""For what is not known."""
_LAST_SECOND: Final = 253402300799.0
"""Of the year 9999: later moments have no name."""


def render(template: str, **values: Any) -> str:
    """A template of this package; every text that is put in is escaped."""
    return _engine().get_template(template).render(**values)


@cache
def _engine() -> Environment:
    engine = Environment(
        loader=PackageLoader("fedelmy_launcher.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    engine.filters |= {
        "percent": lambda share: _DASH if share is None else percent(share),
        "bytes": lambda size: _DASH if size is None else bytes_text(size),
        "moment": _moment,
        "clock": _clock,
        "duration": lambda seconds: _DASH if seconds is None else duration_text(seconds, exact=True),
        "number": _number,
        "or_dash": lambda value: _DASH if value in (None, "") else value,
        "words": _words,
    }
    return engine


def _moment(seconds: float | None) -> str:
    """Date and time; UTC, because sites may be anywhere."""
    if seconds is None or not 0 <= seconds <= _LAST_SECOND:
        return _DASH
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _clock(seconds: float | None) -> str:
    if seconds is None or not 0 <= seconds <= _LAST_SECOND:
        return _DASH
    return datetime.fromtimestamp(seconds, UTC).strftime("%m-%d %H:%M:%S")


def _number(value: float | int | None, digits: int = 3) -> str:
    if value is None:
        return _DASH
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def _words(value: Any) -> str:
    """A setting as one line: lists with commas, tables as key=value."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_words(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_words(item) for item in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _DASH if value is None or value == "" else str(value)
