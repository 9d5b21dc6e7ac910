"""Memory that a batch gives back is wanted again by the next one: the process keeps it.

The C library maps blocks of this size anew each time and gives them back at once; then the kernel clears every page of
every activation in every batch, which took a fifth of a small network's time on a CPU (`bench/training.py`).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Parameters of mallopt, as in malloc.h."""
_BLOCK_BYTES: Final = 1 << 30
"""Larger blocks are mapped and given back one by one: they are data sets, not activations."""
_KEPT_BYTES: Final = 2**31 - 1
"""As much as can be said."""


@cache
def keep_freed_memory() -> bool:
    """From now on, for this whole process; False where the C library is another one, or does not do it."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _BLOCK_BYTES)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))
