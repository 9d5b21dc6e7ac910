"""Subjects of certificates, and a site's own rules about certificates.

Plain data without cryptography: processes that never verify a certificate read settings, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast, get_args

from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.names import SiteName, site_name

SUFFIX: Final = "fedelmy"
"""Last label of the DNS names in the federation's certificates."""
Role = Literal["site", "operator"]
"""A site trains and transfers models; an operator controls runs and signs plans."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The site or operator that a certificate names."""

    name: SiteName
    """Operators follow the same naming rule."""
    role: Role

    @classmethod
    def of(cls, name: str, role: str) -> Subject:
        """Validate an untrusted name and role."""
        if role not in get_args(Role):
            message = f"{role[:100]!r} is not a role"
            raise ConfigError("E-CONFIG-VALUE", message, hint="Use site or operator.")
        return cls(name=site_name(name), role=cast(Role, role))

    @classmethod
    def parse(cls, text: str) -> Subject:
        """Parse `site/north`, the inverse of `str`."""
        role, _, name = text.partition("/")
        return cls.of(name, role)

    @property
    def dns_name(self) -> str:
        """The DNS name in a certificate of the federation's own CA."""
        return f"{self.name}.{self.role}.{SUFFIX}"

    def __str__(self) -> str:
        return f"{self.role}/{self.name}"


_NAME_CHARACTERS: Final = 2000
"""Limit of a subject; parsing takes many times its size in memory."""
_FINGERPRINT: Final = re.compile(r"(?:[0-9A-F]{4}-){4}[0-9A-F]{4}|sha256:[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class NameRule:
    """Maps a name chosen by another CA to a subject; set either `san` or `distinguished`."""

    subject: Subject
    san: str | None = None
    """A DNS name among the subject alternative names."""
    distinguished: str | None = None
    """The distinguished name in RFC 4514 form: `CN=node1,O=South Hospital,C=DE`."""

    def __post_init__(self) -> None:
        problem, name = "", self.san or self.distinguished or ""
        if (self.san is None) == (self.distinguished is None):
            problem = "needs either san or subject"
        elif not name:
            problem = "is empty"
        elif len(name) > _NAME_CHARACTERS:
            problem = f"has more than {_NAME_CHARACTERS} characters"
        if problem:
            raise ConfigError("E-CONFIG-VALUE", f"the name of {self.subject} {problem}")

    def __str__(self) -> str:
        return f"san {self.san}" if self.san is not None else f"subject {self.distinguished}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrustRules:
    """A site's own rules about certificates, in addition to its CA."""

    names: tuple[NameRule, ...] = ()
    """A subject listed here is recognised by these names only."""
    pins: Mapping[Subject, str] = field(default_factory=dict)
    """Short or full fingerprints: certificates of the subject must have this key."""

    def __post_init__(self) -> None:
        subjects: dict[tuple[str | None, str | None], Subject] = {}
        for rule in self.names:
            other = subjects.setdefault((rule.san, rule.distinguished), rule.subject)
            if other != rule.subject:
                message = f"{rule} cannot be both {other} and {rule.subject}"
                raise ConfigError("E-CONFIG-VALUE", message)


def fingerprint_text(text: str) -> str:
    """Normalise a short or full (`sha256:...`) fingerprint as printed by `identity show`."""
    plain = text.strip()
    plain = plain.lower() if plain.lower().startswith("sha256:") else plain.upper()
    if not _FINGERPRINT.fullmatch(plain):
        hint = "Copy it from `fedelmy-node identity show`, such as 5F3A-90C1-77DE-0B42-A9E6."
        raise ConfigError("E-CONFIG-VALUE", f"{text[:200]!r} is not a fingerprint", hint=hint)
    return plain
