"""The measurements that advice refers to: evidence.toml, whose rows are those of docs/results.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from fedelmy_node.config.decode import decode, read_toml

FILE: Final = Path(__file__).with_suffix(".toml")
PAGE: Final = "docs/results.md"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One measured accuracy, in percent."""

    id: str
    method: str
    setting: str
    accuracy: float
    section: str
    """Anchor of the section in docs/results.md."""
    std: float | None = None
    """Over the seeds; None for a single one."""
    seeds: int | None = None
    """None: the page does not say."""
    pool_size: int | None = None
    """Members of the pool; None if there is no pool."""
    row: str = ""
    """First cell of its line in the section's table; empty: the number is in a sentence."""
    column: str = ""
    """Beginning of its column's heading."""

    @property
    def figure(self) -> str:
        """The accuracy as in the table, such as `38.0 ± 7.6`."""
        spread = "" if self.std is None else f" ± {_text(self.std)}"
        return f"{_text(self.accuracy)}{spread}"

    @property
    def place(self) -> str:
        return f"{PAGE}#{self.section}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The boundaries between cases; the file says why each has its value."""

    moderate_skew: float
    strong_skew: float
    few_samples: int
    few_per_class: int
    longest_epochs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggested:
    """Values of settings that advice switches on."""

    distil_absent: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two rows with the same number of epochs per site."""

    fedseq: str
    pool: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The file."""

    limits: Limits
    suggested: Suggested
    equal_computation: Mapping[str, Pair]
    """By level of skew."""
    reasons: Mapping[str, tuple[str, ...]]
    """Ids of the rows to show, by reason."""
    rows: tuple[Row, ...]

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.id == name)

    def rows_for(self, reason: str, level: str) -> tuple[Row, ...]:
        """The rows to show for a reason, at this level of skew if they differ."""
        at_level = f"{reason}_{'strong' if level == 'strong' else 'moderate'}"
        return tuple(map(self.row, self.reasons.get(at_level) or self.reasons[reason]))

    def compared(self, level: str) -> tuple[Row, Row]:
        """FedSeq, and the pool without distances, with equal computation."""
        pair = self.equal_computation[level]
        return self.row(pair.fedseq), self.row(pair.pool)


def _text(number: float) -> str:
    return f"{number:.1f}" if number == round(number, 1) else f"{number:g}"


@cache
def load_evidence() -> Evidence:
    return decode(Evidence, read_toml(FILE))
