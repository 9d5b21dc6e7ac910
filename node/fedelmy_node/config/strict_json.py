"""JSON that somebody else wrote, parsed strictly: what passes here can be compared, written again and shown.

Python's parser is more generous than the standard, and than what the rest of this software can hold: NaN and infinity,
numbers of any length, keys that occur twice (the last one wins, but not in every library), UTF-16, halves of
characters. Each is a way to make two programs read two different things in one signed text.
"""

from __future__ import annotations

import json
import math
import re
from itertools import accumulate
from typing import Any, Final

__all__ = ["parse_json", "MAX_DEPTH", "MAX_VALUES"]

MAX_DEPTH: Final = 32
"""Of lists and tables in each other; a plan has 5. Whatever walks over a value may recurse this deep."""
MAX_VALUES: Final = 400_000
"""A plan of the longest chain that fits into a message has fewer; each costs more memory than it has bytes."""
_NUMBER_CHARACTERS: Final = 40
"""Every 64-bit integer and every double fits."""
_INTEGERS: Final = range(-(2**63), 2**64)
_LARGE: Final = re.compile(r"[0-9]{19}|[eE][+-]?[0-9]{3}")
"""A number that may be too large. Only then is each looked at: Python is slow at that, and messages may be long."""
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")
"""Half a character, or one of two halves that belong together."""
_NO_BRACKETS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[^][{}"]++|"', re.DOTALL)
"""Whole strings, and whatever else opens or closes no list or table."""
_STEPS: Final = tuple(1 if chr(byte) in "[{" else -1 for byte in range(256))
"""How much deeper each bracket leads."""


def parse_json(data: bytes, max_values: int = MAX_VALUES) -> Any:
    """The value of a JSON text in UTF-8; anything wrong with it is a ValueError whose text is short."""
    if data.count(b",") > max_values:  # between any two values of a list or table is one
        raise ValueError("it has too many values")
    if _is_too_deep(data):
        raise ValueError("its lists and tables are too deep")
    try:
        text = data.decode("utf-8")
        integer, real = (_integer, _float) if _LARGE.search(text) else (None, None)
        value = json.loads(
            text, object_pairs_hook=_table, parse_constant=_constant, parse_int=integer, parse_float=real
        )
        if _HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError as error:
        raise ValueError("it is not UTF-8 text") from error
    return value


def _is_too_deep(data: bytes) -> bool:
    """Before anything is parsed, because parsers recurse; one pass, and no copy of what is between the brackets."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _NO_BRACKETS.sub(b"", data)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_DEPTH


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key occurs twice")
    return table


def _constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _integer(text: str) -> int:
    if len(text) > _NUMBER_CHARACTERS or (number := int(text)) not in _INTEGERS:
        raise ValueError("a number is too large")
    return number


def _float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError("a number is too large")
    return number
