"""The numbers of a cell, folded from the events of its run: the same for a simulation and for real nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from fedelmy_launcher.progress import RunProgress
from fedelmy_node.domain.event_data import is_count, is_square
from fedelmy_node.domain.events import Event, EventKind, StepState
from fedelmy_node.domain.names import StepId
from fedelmy_node.domain.plan import StepKind

__all__ = ["Measures"]


class Measures:
    """A run's events as they come."""

    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress
        self._kinds = {step.id: step.kind for step in progress.steps}
        self._evaluated: dict[StepId, Mapping[str, Any]] = {}
        self._distances: list[list[float]] | None = None

    def add(self, event: Event) -> None:
        if event.kind != EventKind.STEP or event.step is None or event.data.get("state") != StepState.DONE:
            return
        result = event.data.get("result")
        if not isinstance(result, Mapping):
            return
        if self._kinds.get(event.step) == StepKind.EVALUATE:
            self._evaluated[event.step] = result
        elif self._kinds.get(event.step) == StepKind.TRAIN and is_square(result.get("pool_distances")):
            self._distances = result["pool_distances"]  # of the last one in the end

    def result(self) -> dict[str, Any]:
        """What the results file says about the cell's run."""
        run = self._progress.result()
        return {
            "accuracy": _rounded(run["accuracy"]),
            "balanced_accuracy": _rounded(self._balanced()),
            "samples": run["samples"],
            "bytes": run["bytes_sent"],
            "bytes_delivered": run["bytes_delivered"],
            "bundle_bytes": run["bundle_bytes"],
            "sha256": run["bundle_sha256"],
            "seconds": round(run["seconds"], 1),
            "subset": run["subset"],
            "pool_distances": self._distances,
        }

    def _balanced(self) -> float | None:
        """The mean sensitivity over the classes, of the test samples of all sites together."""
        right: dict[str, int] = defaultdict(int)
        whole: dict[str, int] = defaultdict(int)
        for result in self._evaluated.values():
            classes = result.get("classes")
            for name, row in classes.items() if isinstance(classes, Mapping) else ():
                if is_count(row.get("tp")) and is_count(row.get("fn")):
                    right[name] += row["tp"]
                    whole[name] += row["tp"] + row["fn"]
        shares = [right[name] / count for name, count in whole.items() if count]
        return sum(shares) / len(shares) if shares else None


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 6)
