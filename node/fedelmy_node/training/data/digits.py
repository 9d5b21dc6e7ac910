"""scikit-learn's handwritten digits: 1797 grey images of 8x8 pixels, inside the package.

The file is read where the package keeps it: importing scikit-learn for it would add seconds to every
start of a trainer.
"""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedelmy_node.errors import DataError
from fedelmy_node.training.data.raw import ArrayImages, RawData, RawSamples

__all__ = ["load"]


def load() -> RawData:
    """The digits; their seventeen grey levels are spread over 0..255."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError("E-DATA-MISSING", "scikit-learn, which holds the digits, is not installed")
    with gzip.open(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    grey = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    labels = table[:, -1].astype(np.int64)
    pool = RawSamples(labels=labels, images=ArrayImages(len(labels), lambda: grey))
    return RawData(classes=tuple(str(digit) for digit in range(10)), pool=pool)
