"""The template engine (autoescaping) and its filters for times, sizes and shares."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedelmy_node.domain.text import bytes_text, duration_text, percent

_DASH: Final = "\N{EN DASH}"
"""Stands for an unknown value."""
_LAST_SECOND: Final = 253402300799.0
"""Of the year 9999; `datetime` cannot represent later times."""


def render(template: str, **values: Any) -> str:
    """Render a template of this package; all values are escaped."""
    return _engine().get_template(template).render(**values)


@cache
def _engine() -> Environment:
    engine = Environment(
        loader=PackageLoader("fedelmy_launcher.view.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    engine.filters |= {
        "percent": lambda share: _DASH if share is None else percent(share),
        "bytes": lambda size: _DASH if size is None else bytes_text(size),
        # UTC: sites may be anywhere.
        "moment": lambda seconds: _time(seconds, "%Y-%m-%d %H:%M:%S UTC"),
        "clock": lambda seconds: _time(seconds, "%m-%d %H:%M:%S"),
        "duration": lambda span: _DASH if span is None else duration_text(span, exact=True),
        "number": _number,
        "or_dash": lambda value: _DASH if value in (None, "") else value,
        "setting": _setting,
    }
    return engine


def _time(seconds: float | None, form: str) -> str:
    if seconds is None or not 0 <= seconds <= _LAST_SECOND:
        return _DASH
    return datetime.fromtimestamp(seconds, UTC).strftime(form)


def _number(value: float | int | None, digits: int = 3) -> str:
    if value is None:
        return _DASH
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def _setting(value: Any) -> str:
    """A setting as one line: lists with commas, tables as key = value."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_setting(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_setting(item) for item in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _DASH if value is None or value == "" else str(value)
