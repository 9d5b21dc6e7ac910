"""Texts from outside, before they reach a terminal, a log or a file that people read."""

from __future__ import annotations

__all__ = ["clean"]


def clean(text: str, limit: int) -> str:
    """Printable, on one line, and bounded."""
    printable = "".join(character if character.isprintable() else " " for character in text[: limit + 1])
    return printable if len(printable) <= limit else f"{printable[: limit - 3]}..."
