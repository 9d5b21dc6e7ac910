"""The file that makes a subset of a source a site's data; `fedelmy-launch partition` writes it.

Positions refer to the source's pool (all samples but its own test set) in the loader's order. The file
also says of what source, how and from which seed it was drawn, so that it can be drawn again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from fedelmy_node.config.decode import canonical_json, decode
from fedelmy_node.domain.names import SiteName, site_name
from fedelmy_node.durable import write_durably
from fedelmy_node.errors import DataError, FedelmyError

__all__ = ["FORMAT", "Indices", "read_indices", "write_indices"]

FORMAT: Final = "fedelmy-indices-1"


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise DataError("E-DATA-INDICES", message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Indices:
    """One site's part of a source."""

    format: Literal["fedelmy-indices-1"] = FORMAT
    """Of this file; a reader refuses those that it does not know."""
    source_kind: str
    """What stands before the colon of --data."""
    samples: int
    """Size of the pool that was partitioned; another size means other data."""
    method: str
    """How the parts were drawn."""
    seed: int
    """From which they were drawn."""
    site: SiteName
    """Whose part this is."""
    indices: tuple[int, ...]
    """Positions in the pool, none twice."""
    alpha: float | None = None
    """Of the Dirichlet distribution, where that was the method."""
    sites: int | None = None
    """How many parts were drawn together."""

    def __post_init__(self) -> None:
        site_name(self.site)
        _require(len(self.indices) > 0, "indices must not be empty")
        low, high = min(self.indices), max(self.indices)
        _require(low >= 0, f"index {low} is negative")
        _require(high < self.samples, f"index {high} is beyond the last of {self.samples} samples")
        _require(len(set(self.indices)) == len(self.indices), "an index appears twice")

    def require_fit(self, *, source_kind: str, samples: int, site: SiteName) -> None:
        """Refuse to be applied to another source or at another site than the one it was drawn for."""
        _require(self.source_kind == source_kind, f"indices of {self.source_kind!r} do not fit {source_kind!r}")
        _require(self.samples == samples, f"indices of {self.samples} samples do not fit the source's {samples}")
        _require(self.site == site, f"indices of site {self.site!r} are not those of site {site!r}")


def read_indices(path: Path) -> Indices:
    """The file's content, or E-DATA-INDICES whatever is wrong with it."""
    try:
        value = json.loads(path.read_bytes())
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise DataError("E-DATA-INDICES", f"it is not a file of the format {FORMAT}")
        return decode(Indices, value)
    except FedelmyError as error:
        raise DataError("E-DATA-INDICES", f"the indices file: {error.message}", private=str(path)) from error
    except OSError as error:
        reason, hint = error.strerror or type(error).__name__, "Check the path after --indices."
        message = f"the indices file cannot be read: {reason}"
        raise DataError("E-DATA-INDICES", message, hint=hint, private=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise DataError("E-DATA-INDICES", "the indices file is not JSON", private=f"{path}: {error}") from error


def write_indices(path: Path, indices: Indices) -> None:
    """Write the file whole or not at all; others may read it."""
    write_durably(path, canonical_json(indices) + b"\n", mode=0o644)
