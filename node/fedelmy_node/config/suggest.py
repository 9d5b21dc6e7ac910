"""What to say to somebody who wrote a name that is not known: the nearest one that is, or all of them."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["suggestion"]


def suggestion(name: str, known: Iterable[str], plural: str) -> str:
    """`Did you mean 'mlp'?`, or `Models: mlp, cnn.` where nothing is near, or `Models: none.`"""
    import difflib  # only whoever errs needs it

    names = list(known)
    close = difflib.get_close_matches(name[:100], names, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"{plural}: {', '.join(names) or 'none'}."
