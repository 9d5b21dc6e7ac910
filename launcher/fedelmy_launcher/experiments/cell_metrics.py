"""The numbers of a cell, from the events of its run; the same for simulations and real nodes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from fedelmy_launcher.view.history.event_values import correct_by_class
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_node.domain.event_data import is_count, is_square
from fedelmy_node.domain.events import Event, EventKind, StepState


class Measures:
    """A cell's result; `progress` must have received the same events."""

    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress
        self._distances: list[list[float]] | None = None
        """In the pool of the last finished step that trains."""
        self._losses: dict[tuple[str, int], float] = {}
        """Of the last epoch of every model, by step and member; without warm-ups."""

    def add(self, event: Event) -> None:
        if event.step is None:
            return
        if event.kind == EventKind.EPOCH and event.data["phase"] == "member":
            self._losses[event.step, event.data["member"]] = event.data.get("loss", math.nan)
        if event.kind != EventKind.STEP:
            return
        if not self._progress.traits(event.step).trains:
            return
        result = event.data.get("result")
        if event.data.get("state") == StepState.DONE and isinstance(result, Mapping):
            distances = result.get("pool_distances")
            self._distances = distances if is_square(distances) else self._distances

    def result(self) -> dict[str, Any]:
        """The run's part of an entry in the results file."""
        run = self._progress.result()
        return {
            "accuracy": _rounded(run["accuracy"]),
            "balanced_accuracy": _rounded(self._balanced()),
            "validation_accuracy": _rounded(self._validated()),
            "final_loss": self._final_loss(),
            "samples": run["samples"],
            "bytes": run["bytes_sent"],
            "bytes_delivered": run["bytes_delivered"],
            "bundle_bytes": run["bundle_bytes"],
            "sha256": run["bundle_sha256"],
            "seconds": round(run["seconds"], 1),
            "subset": run["subset"],
            "pool_distances": self._distances,
        }

    def _final_loss(self) -> float | None:
        """The mean training loss of all models in their last epochs; None if any is unknown."""
        losses = list(self._losses.values())
        known = bool(losses) and all(map(math.isfinite, losses))
        return round(math.fsum(losses) / len(losses), 6) if known else None

    def _balanced(self) -> float | None:
        """The mean sensitivity over the classes, on the test samples of all sites; None if fewer
        than two classes have samples.
        """
        right: dict[str, int] = defaultdict(int)
        whole: dict[str, int] = defaultdict(int)
        for site in self._progress.sites.values():
            classes = (site.evaluation or {}).get("classes")
            for name, row in classes.items() if isinstance(classes, Mapping) else ():
                if is_count(row.get("tp")) and is_count(row.get("fn")):
                    right[name] += row["tp"]
                    whole[name] += row["tp"] + row["fn"]
        shares = [right[name] / count for name, count in whole.items() if count]
        return sum(shares) / len(shares) if len(shares) >= 2 else None

    def _validated(self) -> float | None:
        """Correct over all validation samples of the sites that evaluated the result."""
        evaluations = [site.evaluation or {} for site in self._progress.sites.values()]
        by_class = [correct_by_class(found.get("validated_classes")) for found in evaluations]
        counts = [row for found in by_class if found for row in found.values()]
        samples = sum(row["samples"] for row in counts)
        return sum(row["correct"] for row in counts) / samples if samples else None


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 6)
