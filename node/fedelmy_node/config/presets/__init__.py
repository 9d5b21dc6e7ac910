"""Presets: the paper's settings per data set, as defaults for federation.toml.

Each TOML file here has the tables [task], [model] and [training] of federation.toml,
[strategy.NAME] for each strategy, and [with.MODEL] with the same tables for one model. The
federation's own settings override all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fedelmy_node.config.decode import read_toml, suggestion
from fedelmy_node.domain.errors import ConfigError

_DIRECTORY: Final = Path(__file__).parent
_PAPER: Final = "paper-"
"""These presets have the literal values of the paper; earlier versions named them without it."""


def _names() -> list[str]:
    return sorted(path.stem for path in _DIRECTORY.glob("*.toml"))


def presets() -> Mapping[str, str]:
    """Return all presets with their descriptions."""
    return {name: str(read_toml(_DIRECTORY / f"{name}.toml")["description"]) for name in _names()}


def with_preset(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the tables of a federation over its preset, without validation."""
    federation = tables.get("federation")
    name = federation.get("preset") if isinstance(federation, Mapping) else None
    if name is None:
        return dict(tables)
    if f"{_PAPER}{name}" in _names():
        name = f"{_PAPER}{name}"
    if name not in _names():
        hint = suggestion(str(name), _names(), "Presets")
        raise ConfigError("E-CONFIG-VALUE", f"unknown preset {str(name)[:80]!r}", hint=hint)
    preset = read_toml(_DIRECTORY / f"{name}.toml")
    model = _chosen(tables, "model") or preset["model"]["name"]
    base = _merged(preset.get("with", {}).get(model, {}), preset)
    defaults = {table: base[table] for table in ("task", "model", "training")}
    defaults["strategy"] = base["strategy"].get(_chosen(tables, "strategy") or "fedelmy", {})
    return _merged(tables, defaults)


def _chosen(tables: Mapping[str, Any], table: str) -> str | None:
    found = tables.get(table)
    name = found.get("name") if isinstance(found, Mapping) else None
    return name if isinstance(name, str) else None


def _merged(upper: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables key by key; replace anything else as a whole."""
    merged = dict(lower)
    for key, value in upper.items():
        below: Any = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = _merged(value, below) if both else value
    return merged
