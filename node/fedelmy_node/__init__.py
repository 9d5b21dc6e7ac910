"""The node of a site: the daemon, the training, and the domain they share with the launcher."""

from typing import Final

__all__ = ["__version__", "CONTRACT"]

__version__: Final = "0.1.0"
CONTRACT: Final = "fedelmy.v1"
"""The wire contract that this software speaks; part of every plan and of every description of a node."""
