"""Write deploy/constraints.txt: exact versions of all runtime and build dependencies of the image.

    python3.11 deploy/lock.py                 # the newest that pyproject.toml allows
    python3.11 deploy/lock.py --keep          # change only what is missing or no longer allowed

Run it with the Python version of the image, on its platform: pip resolves for the interpreter that
runs it. Nothing is installed, but pip may download packages.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main", "requirements"]

_ROOT = Path(__file__).parents[1]
_FILE = _ROOT / "deploy" / "constraints.txt"
_HEAD = """\
# Exact versions of what deploy/Dockerfile installs; written by deploy/lock.py for Python {python}
# on Linux. A build of torch for the CPU alone needs none of cuda-*, nvidia-* and triton: a
# constraint installs nothing.
"""


def requirements() -> tuple[list[str], list[str]]:
    """Return the runtime and the build requirements."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))
    return project["project"]["dependencies"], project["build-system"]["requires"]


def resolve(wanted: Sequence[str], constraints: Path | None) -> dict[str, str]:
    """Return name and version of all packages that pip would install."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--dry-run",
            "--ignore-installed",
            "--only-binary",
            ":all:",
            "--report",
            str(report),
            *wanted,
        ]
        if constraints is not None:
            command += ["--constraint", str(constraints)]
        subprocess.run(command, check=True)
        found = json.loads(report.read_text("utf-8"))["install"]
    return {_canonical(each["metadata"]["name"]): each["metadata"]["version"] for each in found}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", action="store_true", help="keep the versions that are there")
    options = parser.parse_args(arguments)
    running, building = requirements()
    # Resolve both together, because both are installed with the same file.
    found = resolve([*running, *building], _FILE if options.keep else None)
    head = _HEAD.format(python=f"{sys.version_info.major}.{sys.version_info.minor}")
    lines = [f"{name}=={version}\n" for name, version in sorted(found.items())]
    _FILE.write_text(head + "".join(lines), "utf-8")
    sys.stdout.write(f"{_FILE.relative_to(_ROOT)}: {len(lines)} packages\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
