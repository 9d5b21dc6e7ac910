"""Recommendations and notes, and what the rules that make them know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from fedelmy_launcher.advice.evidence import Evidence, Row
from fedelmy_launcher.advice.label_skew import SiteCounts, Skew
from fedelmy_node.domain.federation import Federation, Recipe
from fedelmy_node.training.strategies import settings_for

Level = Literal["none", "moderate", "strong"]
ANALYTIC: Final = "analytic"
SEQUENTIAL: Final = ("fedelmy", "fedseq", "fedprox", "fedavg")
"""Strategies that train one model; only the first two were compared."""
IN_A_ROW: Final = ("chain", "ring")
_SHOWN: Final = 5
"""Names of sites or classes in one sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """One key of federation.toml, and the value to give it."""

    key: str
    """Dotted, such as `training.loss`."""
    current: Any
    """With the defaults; None: the current strategy has no such setting."""
    recommended: Any
    reason: str
    evidence: tuple[Row, ...] = ()

    @property
    def changes(self) -> bool:
        return bool(self.current != self.recommended)


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """Something to know or to decide that no key of federation.toml settles."""

    text: str
    evidence: tuple[Row, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """What to take, what to know, and what was assumed."""

    skew: Skew | None
    """None: too few sites disclose class counts."""
    level: Level
    recommendations: tuple[Recommendation, ...]
    """Also those that the file follows already."""
    remove: tuple[str, ...]
    """Keys that do not fit the recommended settings."""
    notes: tuple[Note, ...]
    assumed: tuple[str, ...]

    @property
    def changes(self) -> tuple[Recommendation, ...]:
        return tuple(each for each in self.recommendations if each.changes)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The evidence, each row once."""
        cited = [each.evidence for each in self.recommendations]
        cited += [note.evidence for note in self.notes]
        return tuple(dict.fromkeys(row for rows in cited for row in rows))


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What the rules know."""

    federation: Federation
    sites: Sequence[SiteCounts]
    evidence: Evidence
    skew: Skew | None
    level: Level

    @property
    def recipe(self) -> Recipe:
        return self.federation.recipe

    @property
    def lacks_classes(self) -> bool:
        """Whether sites lack classes that others have; assumed if unknown."""
        return self.skew is None or self.skew.absent > 0

    def rows_for(self, reason: str) -> tuple[Row, ...]:
        """The evidence for a reason."""
        return self.evidence.rows_for(reason, self.level)

    def setting(self, key: str) -> Any:
        """A setting of the current strategy, with its default."""
        return getattr(settings_for(self.recipe.strategy), key)


Found = Iterator[Recommendation | Note]


def kept(key: str, value: Any, reason: str, evidence: tuple[Row, ...] = ()) -> Recommendation:
    """A value that may stay."""
    return Recommendation(
        key=key, current=value, recommended=value, reason=reason, evidence=evidence
    )


def listed(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    more = len(names) - _SHOWN
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown
