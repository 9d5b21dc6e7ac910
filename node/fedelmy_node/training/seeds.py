"""Every random number of a run, from the run's seed and from where it is used; nothing has to be saved."""

from __future__ import annotations

import hashlib
import json

__all__ = ["derive"]


def derive(run_seed: int, *place: str | int) -> int:
    """A 63-bit seed for one place of a run: (site, visit, pool member, epoch, batch) and the like.

    Run ids, step ids and strategy names must not be part of the place: equal mathematics must give
    equal bytes across runs, strategies and topologies.
    """
    text = json.dumps([run_seed, *place], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
