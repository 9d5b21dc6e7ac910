"""`[consent]` of site.toml: what this site is willing to do for whom, and what it tells about itself.

Everything here narrows down: what is not said is not limited. `daemon/consent.py` holds plans against it,
`daemon/disclosure.py` holds answers against it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal, get_args

from fedelmy_node.config.code import is_code
from fedelmy_node.domain.names import site_name
from fedelmy_node.errors import ConfigError

__all__ = ["Consent", "Disclosure", "USUAL", "EVERYTHING"]

Disclosure = Literal["sample-counts", "class-counts", "metrics", "features"]
"""Numbers about a site's data that operators may be told."""
EVERYTHING: Final[tuple[Disclosure, ...]] = get_args(Disclosure)
USUAL: Final[tuple[Disclosure, ...]] = ("sample-counts", "class-counts", "metrics")
"""What is told unless a site says otherwise: nothing about single samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Consent:
    """What this site agrees to; None: no limit of its own."""

    operators: tuple[str, ...] | None = None
    """Operators whose plans it considers; default: any that the federation's CA certified."""
    accept_from: tuple[str, ...] | None = None
    """Sites whose bundles it takes; default: those of a plan that it accepted."""
    federations: tuple[str, ...] | None = None
    """Federations in which it takes part, by the name in the plan."""
    models: tuple[str, ...] | None = None
    """Models that it trains, as patterns: "cnn", "torchvision:*". Code (module:function) only by its whole name."""
    strategies: tuple[str, ...] | None = None
    """Strategies that it computes."""
    classes: tuple[str, ...] | None = None
    """Classes that a plan may ask for, as patterns."""
    max_epochs: int | None = None
    """Passes over the training data for one model."""
    max_pool: int | None = None
    """Models that one step trains, beside the one that it starts from."""
    max_visits: int | None = None
    """Train steps of one run."""
    max_total_epochs: int | None = None
    """Passes over the training data of one run, all models, warm-ups and visits together."""
    max_batch_size: int | None = None
    """Samples per optimizer step: device memory grows with it."""
    max_threads: int | None = None
    """CPU threads of a trainer."""
    max_bundle_mb: float | None = None
    """Size of one bundle in MB (10^6 bytes): disk, memory and traffic grow with it."""
    max_change: float | None = None
    """How far a received model may be from the run's initial one, in lengths of the initial one."""
    disclose: tuple[Disclosure, ...] = USUAL
    """What operators are told beside progress and errors; the administrator on this machine sees everything."""
    require_approval: bool = False
    """A plan that passes all checks waits until the administrator says `fedelmy-node runs approve RUN`."""

    def __post_init__(self) -> None:
        for name in (*(self.operators or ()), *(self.accept_from or ())):
            site_name(name)
        for field in fields(self):
            value = getattr(self, field.name)
            limits = field.name.startswith("max_") and value is not None
            _require(not limits or value > 0, f"{field.name} must be above 0; without the key there is no limit")
            _require(not isinstance(value, tuple) or "" not in value, f"{field.name} must not have an empty text")
        _require(
            "class-counts" not in self.disclose or "sample-counts" in self.disclose,
            'disclose has "class-counts" and not "sample-counts", but who knows the first knows the second',
        )
        _require(
            "features" not in self.disclose or "class-counts" in self.disclose,
            'disclose has "features" and not "class-counts", but the picture shows every sample with its class',
        )

    @property
    def code(self) -> tuple[str, ...]:
        """Functions of this site's own that it lets plans name as models; none unless it lists them."""
        return tuple(name for name in self.models or () if is_code(name))

    @property
    def discloses_usual(self) -> bool:
        """Whether nothing is kept back that sites usually tell."""
        return set(self.disclose) >= set(USUAL)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError("E-CONFIG-VALUE", message)
