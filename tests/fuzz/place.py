"""Where a process of the fuzzing writes."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["ROOT", "directory"]

ROOT: Final = "FEDELMY_FUZZ_ROOT"
"""Environment: where a process makes its directory; whoever started it removes it."""


@cache
def directory() -> Path:
    """In memory where that is possible: nothing here has to survive, and disks are slow to say that
    it does.
    """
    root = os.environ.get(ROOT) or ("/dev/shm" if Path("/dev/shm").is_dir() else None)
    made = Path(tempfile.mkdtemp(prefix="fedelmy-fuzz-", dir=root))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
