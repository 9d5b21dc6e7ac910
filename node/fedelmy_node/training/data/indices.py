"""The file that selects a site's subset of a source; `fedelmy-launch partition` writes it.

Positions refer to the source's pool (all samples but its own test set) in the loader's order. The
file records the source, the method and the seed, so that the partition can be repeated.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from fedelmy_node.config.decode import canonical_json, decode
from fedelmy_node.domain.errors import DataError, FedelmyError
from fedelmy_node.domain.names import SiteName, site_name
from fedelmy_node.store.durable_files import write_durably

FORMAT: Final = "fedelmy-indices-1"


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise DataError("E-DATA-INDICES", message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Indices:
    """One site's part of a source."""

    format: Literal["fedelmy-indices-1"] = FORMAT
    source_kind: str
    """The part of --data before the colon."""
    samples: int
    """Size of the partitioned pool; another size means other data."""
    method: str
    seed: int
    site: SiteName
    indices: tuple[int, ...]
    """Positions in the pool, without duplicates."""
    alpha: float | None = None
    """Parameter of the Dirichlet distribution, if that was the method."""
    sites: int | None = None
    """Number of parts of the partition."""

    def __post_init__(self) -> None:
        site_name(self.site)
        _require(len(self.indices) > 0, "indices must not be empty")
        low, high = min(self.indices), max(self.indices)
        _require(low >= 0, f"index {low} is negative")
        _require(high < self.samples, f"index {high} is beyond the last of {self.samples} samples")
        _require(len(set(self.indices)) == len(self.indices), "an index appears twice")

    def require_fit(self, *, source_kind: str, samples: int, site: SiteName) -> None:
        """Refuse another source or another site than the partition was made for."""
        kind, size = self.source_kind, self.samples
        _require(kind == source_kind, f"the indices are for {kind!r}, not {source_kind!r}")
        _require(size == samples, f"the indices are for {size} samples; the source has {samples}")
        _require(self.site == site, f"the indices are for site {self.site!r}, not {site!r}")


def read_indices(path: Path) -> Indices:
    """Read the file; any problem is an E-DATA-INDICES."""
    try:
        value = json.loads(path.read_bytes())
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise DataError("E-DATA-INDICES", f"its format is not {FORMAT}")
        return decode(Indices, value)
    except FedelmyError as error:
        message = f"the indices file: {error.message}"
        raise DataError("E-DATA-INDICES", message, private=str(path)) from error
    except OSError as error:
        reason, hint = error.strerror or type(error).__name__, "Check the path after --indices."
        message = f"the indices file cannot be read: {reason}"
        raise DataError("E-DATA-INDICES", message, hint=hint, private=str(path)) from error
    except (ValueError, RecursionError) as error:
        message, private = "the indices file is not valid JSON", f"{path}: {error}"
        raise DataError("E-DATA-INDICES", message, private=private) from error


def write_indices(path: Path, indices: Indices) -> None:
    """Write the file atomically and readable by everyone."""
    write_durably(path, canonical_json(indices) + b"\n", mode=0o644)
