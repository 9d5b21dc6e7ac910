"""The site's settings: flags, environment and site.toml become one validated `SiteConfig`.

Precedence: flag > environment > site.toml > default. Click merges flags and environment; None means
not given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from fedelmy_node.config.consent_table import Consent
from fedelmy_node.config.decode import decode, read_toml
from fedelmy_node.domain.errors import ConfigError, DataError
from fedelmy_node.domain.names import (
    Address,
    PeerAddress,
    SiteName,
    address,
    peer_address,
    public_address,
    site_name,
)
from fedelmy_node.domain.subject import NameRule, Subject, TrustRules, fingerprint_text

T = TypeVar("T")
Direction = Literal["push", "pull"]
Unreadable = Literal["refuse", "skip"]
_DEVICE: Final = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError("E-CONFIG-VALUE", message)


@dataclass(frozen=True, kw_only=True, slots=True)
class _SiteTable:
    """`[site]` of site.toml."""

    name: str | None = None
    """Only needed with --insecure; otherwise taken from the certificate."""
    listen: str = "0.0.0.0:50051"
    """Address and port to listen on."""
    advertise: str | None = None
    """Public address and port, if different: behind NAT, a proxy or a container."""
    peers: tuple[str, ...] = ()
    """The sites this one may send to: [SITE=]HOST:PORT."""
    direction: Direction = "push"
    """pull: the site accepts no inbound connections; it connects to its peers and waits there."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    keep_pool: bool = False
    """Keep every pool member on disk, not only their mean."""
    stall_seconds: float = 60.0
    """A transfer without progress for this long is interrupted and retried."""
    prepare_hours: float = 24.0
    """An accepted plan that is not started expires after this time."""
    transfers: int = 4
    """Concurrent outgoing transfers; others wait."""
    keep_runs: int = 50
    """Finished runs to keep on disk; older ones are pruned."""
    metrics: str = "off"
    """[HOST:]PORT of Prometheus metrics; HOST defaults to 127.0.0.1."""
    weights: str | None = None
    """Directory of the weights that models start from; default: weights in the state directory."""

    def __post_init__(self) -> None:
        valid = 0 < self.stall_seconds <= 86_400
        _require(valid, "stall_seconds must be above 0 and at most 86400, a day")
        valid = 0 < self.prepare_hours <= 8_760
        _require(valid, "prepare_hours must be above 0 and at most 8760, a year")
        _require(1 <= self.transfers <= 1000, "transfers must be 1 to 1000")
        _require(1 <= self.keep_runs <= 100_000, "keep_runs must be 1 to 100000")


@dataclass(frozen=True, kw_only=True, slots=True)
class _DataTable:
    """`[data]` of site.toml."""

    source: str | None = None
    """KIND or KIND:PATH; see docs/data.md."""
    indices: str | None = None
    """A file of `fedelmy-launch partition`: this site's subset of the source."""
    unreadable: Unreadable = "refuse"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerSettings:
    """`[trainer]` of site.toml: resources of a trainer."""

    processes: int = 1
    """Processes per step: one per GPU, or several on the CPU; 1 gives reproducible bytes."""
    fast: bool = True
    """On a GPU: mixed precision, and torch.compile where useful; false: float32 throughout."""
    data_memory_mb: int | None = None
    """MiB of samples in memory, the rest on disk; default: half of the available memory."""
    features_mb: int = 4096
    """MiB on disk for the features of frozen models, computed once; 0: keep none."""

    def __post_init__(self) -> None:
        _require(1 <= self.processes <= 64, "processes must be 1 to 64")
        valid = self.data_memory_mb is None or 0 <= self.data_memory_mb <= 1 << 24
        _require(valid, "data_memory_mb must be 0 to 16777216")
        _require(0 <= self.features_mb <= 1 << 24, "features_mb must be 0 to 16777216")

    @property
    def data_bytes(self) -> int | None:
        return None if self.data_memory_mb is None else self.data_memory_mb << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class _NameEntry:
    """`[[identity.names]]` of site.toml: maps a certificate name chosen by another CA."""

    site: str | None = None
    operator: str | None = None
    """Instead of `site`."""
    san: str | None = None
    """A DNS name among its subject alternative names."""
    subject: str | None = None
    """Instead of `san`: its distinguished name in RFC 4514 form."""

    def rule(self) -> NameRule:
        either = (self.site is None) != (self.operator is None)
        _require(either, "an entry of identity.names needs either site or operator")
        role = "operator" if self.site is None else "site"
        subject = Subject.of(self.site or self.operator or "", role)
        return NameRule(subject=subject, san=self.san, distinguished=self.subject)


@dataclass(frozen=True, kw_only=True, slots=True)
class _IdentityTable:
    """`[identity]` of site.toml."""

    names: tuple[_NameEntry, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)
    """SITE or operator/NAME, with the fingerprint of its only accepted key."""

    def rules(self) -> TrustRules:
        pins = {
            Subject.parse(who if "/" in who else f"site/{who}"): fingerprint_text(pin)
            for who, pin in self.pins.items()
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
    """Values of flags and environment variables; None, or no peers: not given."""

    state: Path
    config: Path | None = None
    site: str | None = None
    listen: str | None = None
    advertise: str | None = None
    peers: tuple[str, ...] = ()
    data: str | None = None
    indices: Path | None = None
    direction: Direction | None = None
    device: str | None = None
    keep_pool: bool | None = None
    metrics: str | None = None
    weights: Path | None = None
    insecure: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteConfig:
    """The validated settings of a site; see the tables above."""

    state: Path
    site: SiteName | None
    """From flag or file; must agree with the certificate, if there is one."""
    listen: Address
    peers: tuple[PeerAddress, ...]
    consent: Consent
    data: str | None
    indices: Path | None
    unreadable: Unreadable
    device: str
    keep_pool: bool
    stall_seconds: float
    prepare_hours: float
    keep_runs: int
    insecure: bool
    trust: TrustRules = field(default_factory=TrustRules)
    """The site's own rules about certificates, in addition to its CA."""
    metrics: Address | None = None
    """Address of the metrics server; None: off."""
    transfers: int = 4
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    direction: Direction = "push"
    advertise: Address | None = None
    """Public address; None: not configured."""
    weights: Path = Path()
    """The directory of weights; may not exist."""

    def __post_init__(self) -> None:
        if self.direction == "pull" and not self.peers:
            hint = "Add --peer [SITE=]HOST:PORT of a reachable site, or omit the direction."
            message = 'direction = "pull" needs at least one peer'
            raise ConfigError("E-CONFIG-VALUE", message, hint=hint)
        if not _DEVICE.fullmatch(self.device):
            hint = "Use auto, cpu, cuda or cuda:N."
            raise ConfigError("E-CONFIG-DEVICE", f"{self.device!r} is not a device", hint=hint)


def load_site_config(given: Given) -> SiteConfig:
    """Merge flags and environment over site.toml over defaults; only --config must exist."""
    state = given.state.absolute()
    path = given.config or state / "site.toml"
    tables: Mapping[str, Any] = read_toml(path) if given.config or path.exists() else {}
    try:
        file = decode(_SiteFile, tables)
        trust = file.identity.rules()
    except ConfigError as error:
        hint = (_misplaced(tables) if error.code == "E-CONFIG-KEY" else None) or error.hint
        raise ConfigError(error.code, f"{path}: {error.message}", hint=hint) from error
    site, data = file.site, file.data
    name, advertise = _first(given.site, site.name), _first(given.advertise, site.advertise)
    default_indices = None if data.indices is None else path.absolute().parent / data.indices
    return SiteConfig(
        state=state,
        site=None if name is None else site_name(name),
        listen=address(site.listen if given.listen is None else given.listen),
        peers=tuple(peer_address(peer) for peer in given.peers or site.peers),
        consent=file.consent,
        data=_first(given.data, data.source),
        indices=_existing(_first(given.indices, default_indices)),
        unreadable=data.unreadable,
        device=site.device if given.device is None else given.device,
        keep_pool=site.keep_pool if given.keep_pool is None else given.keep_pool,
        stall_seconds=site.stall_seconds,
        prepare_hours=site.prepare_hours,
        keep_runs=site.keep_runs,
        transfers=site.transfers,
        insecure=given.insecure,
        trust=trust,
        metrics=_metrics_address(site.metrics if given.metrics is None else given.metrics),
        trainer=file.trainer,
        direction=given.direction or site.direction,
        advertise=None if advertise is None else public_address(advertise),
        weights=_weights(given, path, site.weights),
    )


def _weights(given: Given, path: Path, configured: str | None) -> Path:
    """A relative path in site.toml is relative to that file."""
    if given.weights is not None:
        return given.weights.absolute()
    if configured is not None:
        return path.absolute().parent / configured
    return given.state.absolute() / "weights"


def default_state() -> Path:
    """Return the state directory used without --state and FEDELMY_STATE."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "fedelmy"


def _first(flag: T | None, file: T | None) -> T | None:
    """Prefer the flag, even an empty one: that is refused later, not ignored."""
    return file if flag is None else flag


def _metrics_address(text: str) -> Address | None:
    """Parse [HOST:]PORT; a port alone is local to this machine."""
    if text == "off":
        return None
    try:
        return address(f"127.0.0.1:{text}" if text.isascii() and text.isdigit() else text)
    except ConfigError as error:
        hint = "Write metrics as PORT (local only), HOST:PORT or off."
        raise ConfigError(error.code, f"{text[:80]!r} is not [HOST:]PORT", hint=hint) from error


def _existing(path: Path | None) -> Path | None:
    if path is not None and not path.is_file():
        hint = "Fix the path; `fedelmy-launch partition` writes indices files."
        message = "indices file not found"
        raise DataError("E-DATA-INDICES", message, private=str(path), hint=hint)
    return None if path is None else path.absolute()


def _misplaced(tables: Mapping[str, Any]) -> str | None:
    """Return a hint if the first unknown key belongs to another table."""
    known = {
        table.name: {f.name for f in fields(table.default_factory)}  # type: ignore[arg-type]
        for table in fields(_SiteFile)
    }
    for name, table in tables.items():
        keys = table if name in known and isinstance(table, dict) else ()
        unknown = next((key for key in keys if key not in known[name]), None)
        if unknown is not None:
            home = next((other for other, names in known.items() if unknown in names), None)
            return f"Move it to [{home}]." if home else None
    return None
