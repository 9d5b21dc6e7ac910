"""FedAvg: plain training of one model per site, and a mean by samples where a topology merges.

On a mesh of several rounds it is what the name usually means; on a chain, where nothing is merged, it trains as FedSeq.
"""

from __future__ import annotations

from typing import Final

from fedelmy_node.training.strategies.fedseq import Settings, effort, train

__all__ = ["WEIGHTED", "Settings", "effort", "train"]

WEIGHTED: Final = True
"""Merges weigh every model by the samples that it has seen, so bundles say how many: others learn a site's count."""
