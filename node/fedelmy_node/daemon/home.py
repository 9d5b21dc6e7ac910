"""The node, as far as its executor needs it."""

from __future__ import annotations

from typing import Protocol

from fedelmy_node.daemon.orders import Cancel
from fedelmy_node.domain.names import RunId
from fedelmy_node.domain.reports import Signed

__all__ = ["Home"]


class Home(Protocol):
    """What the executor asks of, and tells, the node that it is part of."""

    def verified_cancel(self, signed: Signed) -> Cancel:
        """What an operator whom this site listens to has signed; raises if it is nobody's word."""

    def run_ended(self, run: RunId) -> None:
        """A run is over here, or forgotten."""

    def faulted(self, error: Exception) -> None:
        """The executor has ended because of this."""
