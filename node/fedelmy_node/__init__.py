"""The node of a site: the daemon, the training, and the domain they share with the launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fedelmy_node.training.evaluation.inference import load_model

__all__ = ["__version__", "CONTRACT", "load_model"]

__version__: Final = "0.1.0"
CONTRACT: Final = "fedelmy.v1"
"""The wire contract; part of every plan and of every description of a node."""


def __getattr__(name: str) -> Any:
    if name == "load_model":  # lazy, because it imports torch
        from fedelmy_node.training.evaluation.inference import load_model

        return load_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
