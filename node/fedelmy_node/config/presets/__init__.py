"""Presets: what the paper used for a data set, as defaults of a federation. One TOML file each, in this directory.

A preset has the tables [task], [model] and [training] of federation.toml; under [strategy.NAME] what a strategy is set
to if it is the one in use; under [with.MODEL] the same tables once more, for that model. Whatever the federation itself
says goes before all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fedelmy_node.config.decode import read_toml
from fedelmy_node.config.suggest import suggestion
from fedelmy_node.errors import ConfigError

__all__ = ["presets", "with_preset"]

_DIRECTORY: Final = Path(__file__).parent


def presets() -> Mapping[str, str]:
    """Every preset with its description."""
    return {path.stem: str(read_toml(path)["description"]) for path in sorted(_DIRECTORY.glob("*.toml"))}


def with_preset(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a federation above those of the preset that it names; they are validated afterwards, as ever."""
    federation = tables.get("federation")
    name = federation.get("preset") if isinstance(federation, Mapping) else None
    if name is None:
        return dict(tables)
    known = [path.stem for path in _DIRECTORY.glob("*.toml")]
    if name not in known:
        hint = suggestion(str(name), sorted(known), "Presets")
        raise ConfigError("E-CONFIG-VALUE", f"there is no preset {str(name)[:80]!r}", hint=hint)
    preset = read_toml(_DIRECTORY / f"{name}.toml")
    chosen = _named(tables, "model") or preset["model"]["name"]
    base = _above(preset.get("with", {}).get(chosen, {}), preset)
    defaults = {table: base[table] for table in ("task", "model", "training")}
    defaults["strategy"] = base["strategy"].get(_named(tables, "strategy") or "fedelmy", {})
    return _above(tables, defaults)


def _named(tables: Mapping[str, Any], table: str) -> str | None:
    found = tables.get(table)
    name = found.get("name") if isinstance(found, Mapping) else None
    return name if isinstance(name, str) else None


def _above(upper: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; anything else is replaced as a whole."""
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = _above(value, below) if both and isinstance(below, Mapping) else value
    return merged
