"""Settings of a cell as one tree of tables: dotted keys, and which of two goes before the other."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fedelmy_node.errors import ConfigError

__all__ = ["Tree", "unfolded", "merged", "parse_setting"]

Tree = dict[str, Any]
"""Tables in tables; a value that is not a table is a leaf, lists included."""

_DEEPEST: Final = 10
"""Dots in a key: no table is that deep."""


def unfolded(settings: Mapping[str, Any]) -> Tree:
    """`{"training.epochs": 3}` as `{"training": {"epochs": 3}}`; tables may stand beside dotted keys."""
    tree: Tree = {}
    for dotted, value in settings.items():
        if dotted.count(".") > _DEEPEST:
            raise ConfigError("E-CONFIG-VALUE", f"{dotted[:80]!r} has too many dots")
        first, _, rest = dotted.partition(".")
        below = unfolded({rest: value}) if rest else unfolded(value) if isinstance(value, Mapping) else value
        tree = merged(tree, {first: below})
    return tree


def merged(*trees: Mapping[str, Any]) -> Tree:
    """All of them in one; where two have a leaf, the later one's stays."""
    whole: Tree = {}
    for tree in trees:
        for key, value in tree.items():
            known = whole.get(key)
            both = isinstance(value, Mapping) and isinstance(known, Mapping)
            whole[key] = merged(known or {}, value) if both else value
    return whole


def parse_setting(texts: Iterable[str]) -> Tree:
    """`KEY=VALUE` as TOML has it: numbers, true, "texts" and [lists]; a bare word is a text."""
    settings: Tree = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            hint = "Write it as --set training.epochs=3."
            raise ConfigError("E-CONFIG-VALUE", f"{text!r} is not KEY=VALUE", hint=hint)
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value.strip()
        settings = merged(settings, unfolded({key.strip(): parsed}))
    return settings
