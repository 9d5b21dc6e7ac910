"""Formatting of texts and numbers; cleaning of texts from other machines.

Control characters, line breaks, bidirectional marks and lone surrogates could forge lines in a log
or a terminal, so `clean` replaces them.
"""

from __future__ import annotations

from typing import Any, Final

MESSAGE_CHARACTERS: Final = 1024
"""Limit of an error message; ours are shorter."""
_MAX_DEPTH: Final = 32


def clean(text: str, limit: int = MESSAGE_CHARACTERS) -> str:
    """Replace unprintable characters with spaces and cut the text to `limit` characters."""
    cut = text if len(text) <= limit else f"{text[: limit - 3]}..."
    return cut if cut.isprintable() else "".join(c if c.isprintable() else " " for c in cut)


def clean_all(value: Any, limit: int = MESSAGE_CHARACTERS, depth: int = _MAX_DEPTH) -> Any:
    """Clean every text in a JSON value, keys included; deeper levels become None."""
    if isinstance(value, str):
        return clean(value, limit)
    if depth == 0:
        return None
    if isinstance(value, dict):
        pairs = value.items()
        return {clean(str(key), limit): clean_all(item, limit, depth - 1) for key, item in pairs}
    if isinstance(value, list):
        return [clean_all(item, limit, depth - 1) for item in value]
    return value


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}%"


def bytes_text(size: int) -> str:
    """Format a size in decimal units, such as 1.5 MB."""
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def duration_text(seconds: float, *, exact: bool = False) -> str:
    """Format as 45 s, 3 min 20 s, 2 h 5 min or 12 days; `exact` adds 210 ms and 12.3 s."""
    if exact and seconds < 1:
        return f"{1000 * max(0.0, seconds):.0f} ms"
    if exact and seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    if whole < 6000:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    if whole < 360_000:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} days"
