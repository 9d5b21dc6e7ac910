"""`[consent]` of site.toml: what this site permits, and which numbers it discloses.

Every key is a restriction; a missing key means no limit. `consent/rules.py` checks plans against
it, `consent/disclosure.py` filters answers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal, get_args

from fedelmy_node.config.registry import is_code
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.names import site_name

Disclosure = Literal["sample-counts", "class-counts", "metrics", "features"]
"""Numbers about a site's data that operators may see."""
EVERYTHING: Final[tuple[Disclosure, ...]] = get_args(Disclosure)
USUAL: Final[tuple[Disclosure, ...]] = ("sample-counts", "class-counts", "metrics")
"""Disclosed by default: nothing about single samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Consent:
    """What this site permits; None: no limit."""

    operators: tuple[str, ...] | None = None
    """Operators whose plans are considered; default: all that the federation's CA certified."""
    accept_from: tuple[str, ...] | None = None
    """Sites whose bundles are accepted; default: those of an accepted plan."""
    federations: tuple[str, ...] | None = None
    """Federations in which the site participates, by the name in the plan."""
    models: tuple[str, ...] | None = None
    """Patterns: "cnn", "torchvision:*". Code (module:function) only by its full name."""
    strategies: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    """Classes that a plan may use, as patterns."""
    max_epochs: int | None = None
    """Passes over the training data for one model."""
    max_pool: int | None = None
    """Models trained in one step, not counting the initial one."""
    max_visits: int | None = None
    """Train steps of one run."""
    max_total_epochs: int | None = None
    """Passes over the training data in one run: all models, warm-ups and visits."""
    max_batch_size: int | None = None
    """Samples per optimizer step; affects device memory."""
    max_threads: int | None = None
    """CPU threads of a trainer."""
    max_bundle_mb: float | None = None
    """Size of one bundle in MB (10^6 bytes); affects disk, memory and traffic."""
    max_change: float | None = None
    """Distance of a received model from the run's initial one, relative to the latter's norm."""
    min_class_samples: int = 10
    """Samples of the smallest class that may be in sums that leave the site; 1: no limit."""
    disclose: tuple[Disclosure, ...] = USUAL
    """What operators see besides progress and errors; the local administrator sees everything."""
    require_approval: bool = False
    """Whether accepted plans also wait for `fedelmy-node runs approve RUN`."""

    def __post_init__(self) -> None:
        for name in (*(self.operators or ()), *(self.accept_from or ())):
            site_name(name)
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            valid = value is None or not name.startswith(("max_", "min_")) or value > 0
            _require(valid, f"{name} must be above 0; omit the key for the default")
            filled = not isinstance(value, tuple) or "" not in value
            _require(filled, f"{name} must not contain an empty string")
        for shown, implied in (("class-counts", "sample-counts"), ("features", "class-counts")):
            complete = shown not in self.disclose or implied in self.disclose
            _require(complete, f'disclose: "{shown}" reveals "{implied}", so add that as well')

    @property
    def code(self) -> tuple[str, ...]:
        """The `module:function` names among the permitted models."""
        return tuple(name for name in self.models or () if is_code(name))

    @property
    def discloses_usual(self) -> bool:
        """Whether the site discloses at least the default."""
        return set(self.disclose) >= set(USUAL)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError("E-CONFIG-VALUE", message)
