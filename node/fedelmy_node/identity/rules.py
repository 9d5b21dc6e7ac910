"""What a site itself says about certificates, beside its CA: foreign names, and keys that it knows.

Plain data without cryptography, because settings are read by processes that never look at a certificate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fedelmy_node.errors import ConfigError
from fedelmy_node.identity.subject import Subject

__all__ = ["NameRule", "TrustRules", "fingerprint_text"]

_NAME_CHARACTERS: Final = 2000
"""Of a whole subject; parsing one takes many times the memory that it has."""
_FINGERPRINT: Final = re.compile(r"(?:[0-9A-F]{4}-){4}[0-9A-F]{4}|sha256:[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class NameRule:
    """A certificate with this name, which another CA chose, belongs to this subject. Exactly one name is given."""

    subject: Subject
    san: str | None = None
    """A DNS name among its alternative names."""
    distinguished: str | None = None
    """Its whole subject, as RFC 4514 writes it: `CN=node1,O=South Hospital,C=DE`."""

    def __post_init__(self) -> None:
        if (self.san is None) == (self.distinguished is None):
            raise ConfigError("E-CONFIG-VALUE", f"the name of {self.subject} needs either san or subject")
        if not (self.san or self.distinguished):
            raise ConfigError("E-CONFIG-VALUE", f"the name of {self.subject} is empty")
        if len(self.san or self.distinguished or "") > _NAME_CHARACTERS:
            message = f"the name of {self.subject} has more than {_NAME_CHARACTERS} characters"
            raise ConfigError("E-CONFIG-VALUE", message)

    def __str__(self) -> str:
        return f"san {self.san}" if self.san is not None else f"subject {self.distinguished}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrustRules:
    """What is believed beyond what the CA says, and what is not believed although the CA says so."""

    names: tuple[NameRule, ...] = ()
    """A subject that is mapped here is known by these names alone."""
    pins: Mapping[Subject, str] = field(default_factory=dict)
    """Fingerprints, short or whole: a certificate that names the subject must have this key."""

    def __post_init__(self) -> None:
        meanings: dict[tuple[str | None, str | None], Subject] = {}
        for rule in self.names:
            other = meanings.setdefault((rule.san, rule.distinguished), rule.subject)
            if other != rule.subject:
                raise ConfigError("E-CONFIG-VALUE", f"{rule} cannot be both {other} and {rule.subject}")


def fingerprint_text(text: str) -> str:
    """A fingerprint as `identity show` prints it, or the whole one (`sha256:...`); the case does not matter."""
    plain = text.strip()
    plain = plain.lower() if plain.lower().startswith("sha256:") else plain.upper()
    if not _FINGERPRINT.fullmatch(plain):
        raise ConfigError(
            "E-CONFIG-VALUE",
            f"{text[:200]!r} is not a fingerprint",
            hint="Copy it from `fedelmy-node identity show`, such as 5F3A-90C1-77DE-0B42-A9E6.",
        )
    return plain
