"""All figures: each takes parts of `RunHistory.encoded()` and returns the text of one SVG element, or none."""

from __future__ import annotations

from fedelmy_launcher.report.curves import site_curves
from fedelmy_launcher.report.pools import pool_accuracies, pool_distances
from fedelmy_launcher.report.run_picture import run_picture
from fedelmy_launcher.report.samples import class_histograms, feature_maps
from fedelmy_launcher.report.timeline import timeline
from fedelmy_launcher.report.traffic import bytes_against_paper, ways_to_federate

__all__ = [
    "bytes_against_paper", "class_histograms", "feature_maps", "pool_accuracies", "pool_distances",
    "run_picture", "site_curves", "timeline", "ways_to_federate",
]  # fmt: skip
