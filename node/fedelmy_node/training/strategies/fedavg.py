"""FedAvg: plain training of one model per site; merges weigh models by samples.

On a mesh of several rounds this is the usual FedAvg; on a chain, without merges, it equals FedSeq.
"""

from __future__ import annotations

from typing import Final

from fedelmy_node.training.strategies.fedseq import Settings, effort, train

__all__ = ["WEIGHTED", "Settings", "effort", "train"]

WEIGHTED: Final = True
"""Bundles have a sample count, so other sites learn it."""
