"""The smallest class that may be in sums: the daemon checks it at Prepare, the trainer at a step."""

from __future__ import annotations

from fedelmy_node.domain.errors import ConsentError
from fedelmy_node.domain.names import SiteName

__all__ = ["check_smallest_class"]


def check_smallest_class(site: SiteName, smallest: int, limit: int) -> None:
    """Refuse sums of a class with few samples: they would tell about each of them.

    The message names neither class nor number, because the operator sees it.
    """
    if smallest < limit:
        message = f"site {site} has a class with fewer than {limit} samples"
        raise ConsentError("E-CONSENT-SMALL", f"{message} and does not send sums of it")
