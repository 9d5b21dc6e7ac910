"""federation.toml as the operator uses it: read by the node's `config.federation_file`, held against registries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedelmy_launcher.topologies import wired
from fedelmy_node.config.federation_file import federation_of, read_federation, trust_rules
from fedelmy_node.domain.federation import Federation, Member
from fedelmy_node.training.models import check_model
from fedelmy_node.training.strategies import settings_for

__all__ = ["load_federation", "federation_from", "trust_rules"]


def load_federation(path: Path, found: Sequence[Member] | None = None) -> Federation:
    """The federation that a file describes, with a model, a strategy and a topology that exist."""
    return read_federation(path, found, _check)


def federation_from(tables: Mapping[str, Any]) -> Federation:
    """The same of tables that no file holds."""
    return federation_of(tables, _check)


def _check(federation: Federation) -> None:
    check_model(federation.recipe.model.name)
    settings_for(federation.recipe.strategy)
    wired(federation.topology, federation.topology_settings, [member.name for member in federation.members])
