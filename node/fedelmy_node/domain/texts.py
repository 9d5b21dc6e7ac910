"""Texts of other machines, made fit for a log, a terminal or the journal: printable and bounded.

What is not printable (control characters, line ends, marks that turn the direction of writing, halves of characters)
can make a terminal or a log say what nobody said.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["clean", "clean_all", "MESSAGE_CHARACTERS"]

MESSAGE_CHARACTERS: Final = 1024
"""Of a sentence about what went wrong: enough for any of ours."""
_ROUNDS: Final = 32
"""How deep `clean_all` looks; what is deeper is nobody's text."""


def clean(text: str, limit: int = MESSAGE_CHARACTERS) -> str:
    """The text with a space for whatever is not printable, cut to `limit` characters."""
    cut = text if len(text) <= limit else f"{text[: limit - 3]}..."
    return cut if cut.isprintable() else "".join(mark if mark.isprintable() else " " for mark in cut)


def clean_all(value: Any, limit: int = MESSAGE_CHARACTERS, rounds: int = _ROUNDS) -> Any:
    """The same for every text in a JSON value, keys included."""
    if isinstance(value, str):
        return clean(value, limit)
    if rounds == 0:
        return None
    if isinstance(value, dict):
        return {clean(str(key), limit): clean_all(item, limit, rounds - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [clean_all(item, limit, rounds - 1) for item in value]
    return value
