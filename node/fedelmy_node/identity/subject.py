"""Whom a certificate names: a site or an operator. Nothing here knows how certificates look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from fedelmy_node.domain.names import SiteName, site_name
from fedelmy_node.errors import ConfigError

__all__ = ["Role", "Subject", "SUFFIX"]

SUFFIX: Final = "fedelmy"
"""The end of every DNS name that names somebody of a federation."""

Role = Literal["site", "operator"]
"""What a certificate's holder may do: a site trains and delivers, an operator controls and signs plans."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """Whom a certificate names."""

    name: SiteName
    """A site's name; an operator's name follows the same rule."""
    role: Role
    """Decided by whoever signed the certificate."""

    @classmethod
    def of(cls, name: str, role: str) -> Subject:
        """The subject of a name and a role that came from outside; either may be refused."""
        if role not in get_args(Role):
            raise ConfigError("E-CONFIG-VALUE", f"{role[:100]!r} is not a role", hint="Use site or operator.")
        return cls(name=site_name(name), role=cast(Role, role))

    @classmethod
    def parse(cls, text: str) -> Subject:
        """The inverse of `str`: `site/north`."""
        role, _, name = text.partition("/")
        return cls.of(name, role)

    @property
    def dns_name(self) -> str:
        """The name in a certificate of the federation's own CA."""
        return f"{self.name}.{self.role}.{SUFFIX}"

    def __str__(self) -> str:
        return f"{self.role}/{self.name}"
