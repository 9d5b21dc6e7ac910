"""The site's own settings: `site.toml`, environment and flags become one validated `SiteConfig`.

One precedence: flag > environment > site.toml > default. Flags and environment arrive together, because
click reads both; what is None was not given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from fedelmy_node.config.decode import decode, read_toml
from fedelmy_node.domain.names import Address, PeerAddress, SiteName, address, peer_address, site_name
from fedelmy_node.errors import ConfigError

__all__ = ["SiteConfig", "Given", "load_site_config", "default_state"]

_DEVICE: Final = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


@dataclass(frozen=True, kw_only=True, slots=True)
class _SiteTable:
    """`[site]` of site.toml."""

    name: str | None = None
    """Only needed with --insecure: otherwise the certificate says it."""
    listen: str = "0.0.0.0:50051"
    """Address and port of this node."""
    peers: tuple[str, ...] = ()
    """Whom this site agrees to send to: [SITE=]HOST:PORT."""
    accept_from: tuple[str, ...] | None = None
    """Sites whose bundles it takes; default: those of a plan that it accepted."""
    operators: tuple[str, ...] | None = None
    """Operators whose plans it considers; default: any that the federation's CA certified."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    keep_pool: bool = False
    """Keep every pool member on disk, not only their mean."""
    stall_seconds: float = 60.0
    """A transfer that moves nothing for so long is broken off and begun again."""
    prepare_hours: float = 24.0
    """A plan that was accepted but not started expires after so long."""

    def __post_init__(self) -> None:
        if self.stall_seconds <= 0 or self.prepare_hours <= 0:
            raise ConfigError("E-CONFIG-VALUE", "stall_seconds and prepare_hours must be above 0")


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
class _SiteFile:
    site: _SiteTable = field(default_factory=_SiteTable)
    data: _DataTable = field(default_factory=_DataTable)


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """What flags and environment say; None (or no peers): nothing."""

    state: Path
    config: Path | None = None
    site: str | None = None
    listen: str | None = None
    peers: tuple[str, ...] = ()
    data: str | None = None
    indices: Path | None = None
    device: str | None = None
    keep_pool: bool | None = None
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
    accept_from: frozenset[SiteName] | None
    operators: frozenset[str] | None
    data: str | None
    indices: Path | None
    unreadable: Literal["refuse", "skip"]
    device: str
    keep_pool: bool
    stall_seconds: float
    prepare_hours: float
    insecure: bool

    def __post_init__(self) -> None:
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
    except ConfigError as error:
        raise ConfigError(error.code, f"{path}: {error.message}", hint=error.hint) from error
    base = path.absolute().parent
    name = given.site or file.site.name
    indices = given.indices or (base / file.data.indices if file.data.indices else None)
    return SiteConfig(
        state=state,
        site=site_name(name) if name else None,
        listen=address(given.listen or file.site.listen),
        peers=tuple(peer_address(peer) for peer in given.peers or file.site.peers),
        accept_from=_names(file.site.accept_from),
        operators=None if file.site.operators is None else frozenset(file.site.operators),
        data=given.data or file.data.source,
        indices=indices.absolute() if indices else None,
        unreadable=file.data.unreadable,
        device=given.device or file.site.device,
        keep_pool=file.site.keep_pool if given.keep_pool is None else given.keep_pool,
        stall_seconds=file.site.stall_seconds,
        prepare_hours=file.site.prepare_hours,
        insecure=given.insecure,
    )


def default_state() -> Path:
    """Where a site keeps its state unless --state or FEDELMY_STATE says otherwise."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "fedelmy"


def _names(values: tuple[str, ...] | None) -> frozenset[SiteName] | None:
    return None if values is None else frozenset(site_name(value) for value in values)
