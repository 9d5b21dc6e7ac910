"""scikit-learn's handwritten digits: 1,797 grey images of 8x8 that come with the package."""

from __future__ import annotations

import numpy as np

from fedelmy_node.training.data.raw import ArrayImages, RawData, RawSamples

__all__ = ["load"]


def load() -> RawData:
    """The digits; their seventeen grey levels are spread over 0..255."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    grey = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    labels = bunch.target.astype(np.int64)
    pool = RawSamples(labels=labels, images=ArrayImages(len(labels), lambda: grey))
    return RawData(classes=tuple(str(digit) for digit in range(10)), pool=pool)
