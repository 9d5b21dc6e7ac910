"""Start Python child processes that never import code from the working directory.

`python -m` searches the working directory first, where others may be able to write. A child does
not (`-P`), nor do its own children (PYTHONSAFEPATH). It finds what is installed and what the user
has put into PYTHONPATH, regardless of its working directory.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with this Python."""
    return [sys.executable, "-P", "-m", module, *arguments]


def import_environment() -> dict[str, str]:
    """Return the environment variables with which a child in another directory finds our code."""
    # An empty entry means the working directory. Scripts often leave one there by mistake.
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    absolute = os.pathsep.join(str(Path(entry).absolute()) for entry in entries)
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": absolute}


def leave_working_directory() -> None:
    """Remove the working directory, which `python -m` adds, from this process's import path."""
    here, ours = Path.cwd(), Path(__file__).absolute().parents[1]
    if not sys.flags.safe_path and sys.path and sys.path[0] == str(here) and here != ours:
        del sys.path[0]
