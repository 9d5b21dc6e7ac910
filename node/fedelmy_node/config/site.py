"""The site's own settings: `site.toml`, environment and flags become one validated `SiteConfig`.

One precedence: flag > environment > site.toml > default. Flags and environment arrive together, because
click reads both; what is None was not given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from fedelmy_node.config.consent import Consent
from fedelmy_node.config.decode import decode, read_toml
from fedelmy_node.domain.names import (
    Address,
    PeerAddress,
    SiteName,
    address,
    peer_address,
    reachable_place,
    site_name,
)
from fedelmy_node.errors import ConfigError, DataError
from fedelmy_node.identity.rules import NameRule, TrustRules, fingerprint_text
from fedelmy_node.identity.subject import Subject

__all__ = ["SiteConfig", "TrainerSettings", "Given", "load_site_config", "default_state"]

T = TypeVar("T")
_DEVICE: Final = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


@dataclass(frozen=True, kw_only=True, slots=True)
class _SiteTable:
    """`[site]` of site.toml."""

    name: str | None = None
    """Only needed with --insecure: otherwise the certificate says it."""
    listen: str = "0.0.0.0:50051"
    """Address and port of this node."""
    advertise: str | None = None
    """Address and port under which others reach it, where that is another: NAT, a proxy, a container's port."""
    peers: tuple[str, ...] = ()
    """Whom this site agrees to send to: [SITE=]HOST:PORT."""
    direction: Literal["push", "pull"] = "push"
    """pull: nobody can call this site; it waits at its peers, and calls back."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    keep_pool: bool = False
    """Keep every pool member on disk, not only their mean."""
    stall_seconds: float = 60.0
    """A transfer that moves nothing for so long is broken off and begun again."""
    prepare_hours: float = 24.0
    """A plan that was accepted but not started expires after so long."""
    transfers: int = 4
    """Bundles that this site hands over at once; the others wait for their turn."""
    keep_runs: int = 50
    """Of the runs that are over, the newest so many stay on disk; older ones are forgotten."""
    metrics: str = "off"
    """[HOST:]PORT of Prometheus metrics; without HOST: 127.0.0.1."""

    def __post_init__(self) -> None:
        if not 0 < self.stall_seconds <= 86_400:
            raise ConfigError("E-CONFIG-VALUE", "stall_seconds must be above 0 and at most 86400, a day")
        if not 0 < self.prepare_hours <= 8_760:
            raise ConfigError("E-CONFIG-VALUE", "prepare_hours must be above 0 and at most 8760, a year")
        if not 1 <= self.transfers <= 1000:
            raise ConfigError("E-CONFIG-VALUE", "transfers must be 1 to 1000")
        if not 1 <= self.keep_runs <= 100_000:
            raise ConfigError("E-CONFIG-VALUE", "keep_runs must be 1 to 100000")


@dataclass(frozen=True, kw_only=True, slots=True)
class _DataTable:
    """`[data]` of site.toml."""

    source: str | None = None
    """KIND or KIND:PATH; see docs/data.md."""
    indices: str | None = None
    """A file of `fedelmy-launch partition`: the subset of the source that is this site's."""
    unreadable: Literal["refuse", "skip"] = "refuse"
    """What to do with a file that cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerSettings:
    """`[trainer]` of site.toml: what a trainer may take of this machine."""

    processes: int = 1
    """Processes that train a step together: one per GPU, or several on the CPU; 1: as everywhere, equal bytes."""
    fast: bool = True
    """On a GPU: mixed precision, and torch.compile where it pays; false: float32 all the way."""
    data_memory_mb: int | None = None
    """MiB of samples in memory; what is more is held on disk. Default: half of what the machine has available."""

    def __post_init__(self) -> None:
        if not 1 <= self.processes <= 64:
            raise ConfigError("E-CONFIG-VALUE", "processes must be 1 to 64")
        if self.data_memory_mb is not None and not 0 <= self.data_memory_mb <= 1 << 24:
            raise ConfigError("E-CONFIG-VALUE", "data_memory_mb must be 0 to 16777216")

    @property
    def data_bytes(self) -> int | None:
        return None if self.data_memory_mb is None else self.data_memory_mb << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class _NameEntry:
    """`[[identity.names]]` of site.toml: whose a certificate is that another CA gave another name."""

    site: str | None = None
    """The site that it belongs to."""
    operator: str | None = None
    """Or the operator."""
    san: str | None = None
    """A DNS name among its alternative names."""
    subject: str | None = None
    """Or its whole subject, as RFC 4514 writes it."""

    def rule(self) -> NameRule:
        if (self.site is None) == (self.operator is None):
            raise ConfigError("E-CONFIG-VALUE", "an entry of identity.names needs either site or operator")
        subject = Subject.of(self.site or self.operator or "", "operator" if self.site is None else "site")
        return NameRule(subject=subject, san=self.san, distinguished=self.subject)


@dataclass(frozen=True, kw_only=True, slots=True)
class _IdentityTable:
    """`[identity]` of site.toml."""

    names: tuple[_NameEntry, ...] = ()
    """Names that other CAs chose."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """SITE or operator/NAME to the fingerprint of the only key that it may have."""

    def rules(self) -> TrustRules:
        pins = {
            Subject.parse(who if "/" in who else f"site/{who}"): fingerprint_text(pin) for who, pin in self.pins.items()
        }
        return TrustRules(names=tuple(entry.rule() for entry in self.names), pins=pins)


@dataclass(frozen=True, kw_only=True, slots=True)
class _SiteFile:
    site: _SiteTable = field(default_factory=_SiteTable)
    data: _DataTable = field(default_factory=_DataTable)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    identity: _IdentityTable = field(default_factory=_IdentityTable)
    consent: Consent = field(default_factory=Consent)


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """What flags and environment say; None (or no peers): nothing."""

    state: Path
    config: Path | None = None
    site: str | None = None
    listen: str | None = None
    advertise: str | None = None
    peers: tuple[str, ...] = ()
    data: str | None = None
    indices: Path | None = None
    direction: Literal["push", "pull"] | None = None
    device: str | None = None
    keep_pool: bool | None = None
    metrics: str | None = None
    insecure: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteConfig:
    """What this site is, has, and is willing to do."""

    state: Path
    """Its state directory."""
    site: SiteName | None
    """From flag or file; a node with an identity takes the certificate's name, which must agree."""
    listen: Address
    peers: tuple[PeerAddress, ...]
    consent: Consent
    data: str | None
    indices: Path | None
    unreadable: Literal["refuse", "skip"]
    device: str
    keep_pool: bool
    stall_seconds: float
    prepare_hours: float
    keep_runs: int
    insecure: bool
    trust: TrustRules = field(default_factory=TrustRules)
    """What this site says about certificates, beside its CA."""
    metrics: Address | None = None
    """Where metrics are served; None: nowhere."""
    transfers: int = 4
    """Bundles that are handed over at once."""
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    """What a trainer may take of this machine."""
    direction: Literal["push", "pull"] = "push"
    """pull: nobody can call this site; it waits at its peers, and calls back."""
    advertise: Address | None = None
    """Where others reach this node; None: it does not say."""

    def __post_init__(self) -> None:
        if self.direction == "pull" and not self.peers:
            hint = "Add --peer [SITE=]HOST:PORT of a site that can be called, or leave the direction away."
            raise ConfigError("E-CONFIG-VALUE", "a site that pulls needs a peer at which it can wait", hint=hint)
        if not _DEVICE.fullmatch(self.device):
            hint = "Use auto, cpu, cuda or cuda:N."
            raise ConfigError("E-CONFIG-DEVICE", f"{self.device!r} is not a device", hint=hint)


def load_site_config(given: Given) -> SiteConfig:
    """Flags and environment over site.toml over defaults. Only a file that was named must exist."""
    state = given.state.absolute()
    path = given.config or state / "site.toml"
    tables: Mapping[str, Any] = read_toml(path) if given.config or path.exists() else {}
    try:
        file = decode(_SiteFile, tables)
        trust = file.identity.rules()
    except ConfigError as error:
        hint = _misplaced(tables) if error.code == "E-CONFIG-KEY" else None
        raise ConfigError(error.code, f"{path}: {error.message}", hint=hint or error.hint) from error
    base = path.absolute().parent
    name, advertise = _first(given.site, file.site.name), _first(given.advertise, file.site.advertise)
    indices = _first(given.indices, None if file.data.indices is None else base / file.data.indices)
    return SiteConfig(
        state=state,
        site=None if name is None else site_name(name),
        listen=address(file.site.listen if given.listen is None else given.listen),
        peers=tuple(peer_address(peer) for peer in given.peers or file.site.peers),
        consent=file.consent,
        data=_first(given.data, file.data.source),
        indices=_existing(indices),
        unreadable=file.data.unreadable,
        device=file.site.device if given.device is None else given.device,
        keep_pool=file.site.keep_pool if given.keep_pool is None else given.keep_pool,
        stall_seconds=file.site.stall_seconds,
        prepare_hours=file.site.prepare_hours,
        keep_runs=file.site.keep_runs,
        transfers=file.site.transfers,
        insecure=given.insecure,
        trust=trust,
        metrics=_metrics_address(file.site.metrics if given.metrics is None else given.metrics),
        trainer=file.trainer,
        direction=given.direction or file.site.direction,
        advertise=None if advertise is None else reachable_place(advertise),
    )


def default_state() -> Path:
    """Where a site keeps its state unless --state or FEDELMY_STATE says otherwise."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "fedelmy"


def _first(flag: T | None, file: T | None) -> T | None:
    """A flag that was given goes first, even an empty one: that is refused, not ignored."""
    return file if flag is None else flag


def _metrics_address(text: str) -> Address | None:
    """[HOST:]PORT: a port alone is one of this machine, which nobody else reaches."""
    if text == "off":
        return None
    try:
        return address(f"127.0.0.1:{text}" if text.isascii() and text.isdigit() else text)
    except ConfigError as error:
        hint = "Write metrics as PORT (of this machine alone), HOST:PORT or off."
        raise ConfigError(error.code, f"{text[:80]!r} is not [HOST:]PORT", hint=hint) from error


def _existing(path: Path | None) -> Path | None:
    if path is not None and not path.is_file():
        hint = "Correct the path; `fedelmy-launch partition` writes such files."
        raise DataError("E-DATA-INDICES", "there is no such indices file", private=str(path), hint=hint)
    return None if path is None else path.absolute()


def _misplaced(tables: Mapping[str, Any]) -> str | None:
    """What to say about the first unknown key, if it is a key of another table."""
    known = {table.name: {f.name for f in fields(table.default_factory)} for table in fields(_SiteFile)}  # type: ignore[arg-type]
    for name, table in tables.items():
        unknown = [key for key in table if key not in known[name]] if name in known and isinstance(table, dict) else []
        for key in unknown[:1]:
            home = next((other for other, keys in known.items() if key in keys), None)
            return f"Move it to [{home}]." if home else None
    return None
