"""All random numbers derive from the run's seed and the place of use, so no state is saved."""

from __future__ import annotations

import hashlib
import json


def derive(run_seed: int, *place: str | int) -> int:
    """A 63-bit seed for one place of a run, such as (site, visit, pool member, epoch, batch).

    Never include run ids, step ids or strategy names: equal mathematics must give equal bytes
    across runs, strategies and topologies.
    """
    text = json.dumps([run_seed, *place], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
