"""federation.toml: read, validated, and turned into a `Federation`.

Whether its model, strategy and topology exist is a question for those who have the registries; they pass `check`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fedelmy_node.config.decode import decode, encode, read_toml
from fedelmy_node.config.presets import with_preset
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
from fedelmy_node.errors import ConfigError, FedelmyError
from fedelmy_node.identity.rules import NameRule, TrustRules, fingerprint_text
from fedelmy_node.identity.subject import Subject

__all__ = ["read_federation", "federation_of", "trust_rules"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _FederationTable:
    """`[federation]`."""

    name: str
    """For people, and the beginning of the run ids."""
    preset: str | None = None
    """Where the defaults of [task], [model], [training] and [strategy] come from."""
    topology: str = "chain"
    """How the steps are wired."""
    order: Literal["listed", "random"] = "listed"
    """listed: as the [[sites]] follow each other; random: drawn from the seed."""
    deliver: Literal["all", "last"] = "all"
    """Who receives the result."""
    seed: int = 0
    """Of every random number of the run."""
    wire_dtype: WireDtype = "float32"
    """How floats travel between sites: half the bytes cost a little accuracy."""
    on_unreachable: OnUnreachable = "wait"
    """What is done about a site that cannot be reached: wait for it, skip it, or abort the run."""
    patience: str = "1h"
    """How long a site must be out of reach before that, as 90s, 30m, 12h or 2d."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _ReportTable:
    """`[report]`: what sites are asked to tell beside the usual."""

    features: int = 0
    """Test samples per site whose features are drawn (t-SNE); sites that do not disclose "features" draw none."""


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
    check: Callable[[Federation], None] = lambda _: None,
    *,
    unlisted: Member | None = None,
) -> Federation:
    """The federation that a file describes; every mistake is named with its place, also those that `check` raises.

    Sites that were `found` by asking stand in place of [[sites]], which may then be missing; where both have a
    site, its policy and its data for simulation stay. `unlisted` stands for whoever will be found, where no sites are
    listed and nobody has asked.
    """
    try:
        defaults: dict[str, Any] = {"strategy": {}} | ({} if found is None else {"sites": []})
        tables = defaults | with_preset(read_toml(path))
        if "sites" not in tables and unlisted is not None:
            tables["sites"] = [encode(unlisted)]
        if "sites" not in tables:
            hint = "Add a [[sites]] table for each; `check` and `run` also find them from `--head HOST:PORT`."
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


def federation_of(tables: Mapping[str, Any], check: Callable[[Federation], None] = lambda _: None) -> Federation:
    """The federation that a file with these tables would describe; relative paths begin in the current directory."""
    file = decode(_File, {"strategy": {}} | with_preset(tables))
    federation = _federation(file, Path("federation.toml"))
    check(federation)
    return federation


def _federation(file: _File, path: Path) -> Federation:
    settings = dict(file.strategy)
    name = settings.pop("name", "fedelmy")
    if not isinstance(name, str):
        raise ConfigError("E-CONFIG-VALUE", f"strategy.name must be a text, not {name!r}")
    recipe = Recipe(
        seed=file.federation.seed,
        task=file.task,
        model=file.model,
        training=file.training,
        strategy=StrategySpec(name=name, settings=settings),
        wire_dtype=file.federation.wire_dtype,
        features=file.report.features,
    )
    trust_rules(file.sites)
    return Federation(
        name=file.federation.name,
        topology=file.federation.topology,
        topology_settings=file.topology,
        order=file.federation.order,
        deliver=file.federation.deliver,
        members=tuple(_beside(member, path.absolute().parent) for member in file.sites),
        recipe=recipe,
        absence=Absence(
            on_unreachable=file.federation.on_unreachable, patience_seconds=seconds_of(file.federation.patience)
        ),
    )


def trust_rules(members: Iterable[Member]) -> TrustRules:
    """What the operator says about the sites' certificates, beside the CA."""
    named = [(Subject.of(m.name, "site"), m) for m in members]
    return TrustRules(
        names=tuple(_name_rule(subject, m.certificate) for subject, m in named if m.certificate is not None),
        pins={subject: fingerprint_text(m.fingerprint) for subject, m in named if m.fingerprint is not None},
    )


def _name_rule(subject: Subject, text: str) -> NameRule:
    kind, _, name = text.partition(":")
    if kind not in ("san", "subject"):
        raise ConfigError(
            "E-CONFIG-VALUE", f"certificate = {text!r} of site {subject.name} is neither san:... nor subject:..."
        )
    return NameRule(subject=subject, san=name if kind == "san" else None, distinguished=name if kind != "san" else None)


def _beside(member: Member, directory: Path) -> Member:
    """A relative indices file is looked for beside the federation file."""
    return replace(member, indices=str(directory / member.indices)) if member.indices else member
