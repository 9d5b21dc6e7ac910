"""federation.toml: reading and validation.

Callers that know the registries pass `check` to validate model, strategy and topology.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fedelmy_node.config.decode import decode, encode, read_toml
from fedelmy_node.config.presets import with_preset
from fedelmy_node.domain.errors import ConfigError, FedelmyError
from fedelmy_node.domain.federation import (
    Absence,
    Federation,
    Member,
    ModelSpec,
    OnUnreachable,
    Recipe,
    Setting,
    StrategySpec,
    Task,
    TopologySetting,
    Training,
    WireDtype,
    seconds_of,
)
from fedelmy_node.domain.subject import NameRule, Subject, TrustRules, fingerprint_text

Check = Callable[[Federation], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class _FederationTable:
    """`[federation]`."""

    name: str
    """Prefix of the run ids."""
    preset: str | None = None
    """Defaults for [task], [model], [training] and [strategy]."""
    topology: str = "chain"
    order: Literal["listed", "random"] = "listed"
    """listed: in the order of [[sites]]; random: derived from the seed."""
    deliver: Literal["all", "last"] = "all"
    seed: int = 0
    """Every random number of the run derives from it."""
    wire_dtype: WireDtype = "float32"
    """Type of floats on the wire; 16 bits halve the size at a small cost in accuracy."""
    on_unreachable: OnUnreachable = "wait"
    """wait for an unreachable site, skip it, or abort the run."""
    patience: str = "1h"
    """How long a site must be unreachable before that, as 90s, 30m, 12h or 2d."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _ReportTable:
    """`[report]`: optional data for the report."""

    features: int = 0
    """Test samples per site in the t-SNE plot; only sites that disclose "features" take part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    federation: _FederationTable
    sites: tuple[Member, ...]
    task: Task
    model: ModelSpec
    training: Training
    strategy: Mapping[str, Setting]
    topology: Mapping[str, TopologySetting] = field(default_factory=dict)
    report: _ReportTable = field(default_factory=_ReportTable)


def read_federation(
    path: Path,
    found: Sequence[Member] | None = None,
    check: Check = lambda _: None,
    *,
    unlisted: Member | None = None,
) -> Federation:
    """Read a federation file; every error names its location, also errors of `check`.

    Discovered sites (`found`) replace [[sites]], which may then be missing; a site in both keeps
    its policy and its data for simulation. `unlisted` is a placeholder for sites that are neither
    listed nor discovered yet.
    """
    try:
        defaults: dict[str, Any] = {"strategy": {}} | ({} if found is None else {"sites": []})
        tables = defaults | with_preset(read_toml(path))
        if "sites" not in tables and unlisted is not None:
            tables["sites"] = [encode(unlisted)]
        if "sites" not in tables:
            hint = "Add a [[sites]] table per site, or pass `--head HOST:PORT` to `check` or `run`."
            raise ConfigError("E-CONFIG-VALUE", "no sites are listed", hint=hint)
        file = decode(_File, tables)
        if found is not None:
            listed = {member.name: member for member in file.sites}
            merged = (replace(listed.get(site.name, site), address=site.address) for site in found)
            file = replace(file, sites=tuple(merged))
        federation = _federation(file, path)
        check(federation)
        return federation
    except FedelmyError as error:
        if str(path) in error.message:
            raise
        raise type(error)(error.code, f"{path}: {error.message}", hint=error.hint) from error


def federation_of(tables: Mapping[str, Any], check: Check = lambda _: None) -> Federation:
    """Build a federation from tables; relative paths start in the current directory."""
    file = decode(_File, {"strategy": {}} | with_preset(tables))
    federation = _federation(file, Path("federation.toml"))
    check(federation)
    return federation


def _federation(file: _File, path: Path) -> Federation:
    settings, table = dict(file.strategy), file.federation
    name = settings.pop("name", "fedelmy")
    if not isinstance(name, str):
        raise ConfigError("E-CONFIG-VALUE", f"strategy.name must be a string, not {name!r}")
    recipe = Recipe(
        seed=table.seed,
        task=file.task,
        model=file.model,
        training=file.training,
        strategy=StrategySpec(name=name, settings=settings),
        wire_dtype=table.wire_dtype,
        features=file.report.features,
    )
    trust_rules(file.sites)
    patience = seconds_of(table.patience)
    return Federation(
        name=table.name,
        topology=table.topology,
        topology_settings=file.topology,
        order=table.order,
        deliver=table.deliver,
        members=tuple(_with_indices_path(member, path.absolute().parent) for member in file.sites),
        recipe=recipe,
        absence=Absence(on_unreachable=table.on_unreachable, patience_seconds=patience),
        preset=table.preset,
    )


def trust_rules(members: Iterable[Member]) -> TrustRules:
    """Return the operator's own rules about the sites' certificates."""
    sites = [(Subject.of(m.name, "site"), m.certificate, m.fingerprint) for m in members]
    names = tuple(_name_rule(site, name) for site, name, _ in sites if name is not None)
    pins = {site: fingerprint_text(pin) for site, _, pin in sites if pin is not None}
    return TrustRules(names=names, pins=pins)


def _name_rule(subject: Subject, text: str) -> NameRule:
    kind, _, name = text.partition(":")
    if kind == "san":
        return NameRule(subject=subject, san=name)
    if kind == "subject":
        return NameRule(subject=subject, distinguished=name)
    problem = "is neither san:... nor subject:..."
    message = f"certificate = {text!r} of site {subject.name} {problem}"
    raise ConfigError("E-CONFIG-VALUE", message)


def _with_indices_path(member: Member, directory: Path) -> Member:
    """Resolve a relative indices file against the directory of the federation file."""
    return replace(member, indices=str(directory / member.indices)) if member.indices else member
