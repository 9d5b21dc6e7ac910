"""Python processes that this one starts: whatever lies in the working directory is none of their code.

`python -m` looks for modules in the working directory first, where others may be able to write. A child does not
(`-P`), nor does whatever it starts (PYTHONSAFEPATH). It finds what is installed, and what whoever runs this process
has put into PYTHONPATH, from whichever directory it works in.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["python", "import_environment", "leave_working_directory"]


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module with this very Python."""
    return [sys.executable, "-P", "-m", module, *arguments]


def import_environment() -> dict[str, str]:
    """The environment variables by which a child in another directory finds the same code."""
    # An empty entry, which many a script leaves there by mistake, means the working directory; `.` says so.
    entries = [str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(entries)}


def leave_working_directory() -> None:
    """`python -m` of this process finds the same code as its children, and as the installed command."""
    here, ours = Path.cwd(), Path(__file__).absolute().parents[1]
    if not sys.flags.safe_path and sys.path and sys.path[0] == str(here) and here != ours:
        del sys.path[0]
