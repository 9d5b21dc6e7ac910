"""The version before this one, built from the repository's history and installed beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["UnavailableError", "install_last_release", "last_release"]

TREE = Path(__file__).resolve().parents[3]
FIRST = "c88ea3131d59535b7fc5e282d7b221a075b3a0c6"
"""Stands for a release until there is a tag."""
BUILD_SECONDS = 200.0
_GIT = ("git", "-c", f"safe.directory={TREE}", "-C", str(TREE))
"""Also where the tree belongs to another user, as in a container."""


class UnavailableError(Exception):
    """No such history here: a source archive, or a shallow clone."""


def last_release() -> str:
    """The last tag before this commit, or the commit that stands for one."""
    if _git("rev-parse", "--show-toplevel") != str(TREE):
        raise UnavailableError(
            "this tree is no git repository, so there is no older version to build"
        )
    release = _git("describe", "--tags", "--abbrev=0", "HEAD^") or FIRST
    if not _git("rev-parse", "--verify", "--quiet", f"{release}^{{tree}}"):
        raise UnavailableError(
            f"the history has no {release[:12]}: a shallow clone? `git fetch --unshallow --tags`"
        )
    return release


def install_last_release(root: Path) -> Path:
    """Build the wheel of the last release and install it, as any release would be; a directory for
    PYTHONPATH.
    """
    tree, installed = root / "tree", root / "installed"
    tree.mkdir()
    archive = [*_GIT, "archive", "--format=tar", f"--output={root / 'tree.tar'}", last_release()]
    subprocess.run(archive, check=True, timeout=BUILD_SECONDS)
    subprocess.run(
        ["tar", "-xf", str(root / "tree.tar"), "-C", str(tree)], check=True, timeout=BUILD_SECONDS
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [
        *pip,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(root),
        str(tree),
    ]
    subprocess.run(build, check=True, timeout=BUILD_SECONDS)
    (wheel,) = root.glob("fedelmy-*.whl")
    install = [*pip, "install", "--no-deps", "--no-index", "--target", str(installed), str(wheel)]
    subprocess.run(install, check=True, timeout=BUILD_SECONDS)
    return installed


def _git(*arguments: str) -> str:
    """What git prints; nothing if it cannot."""
    try:
        done = subprocess.run(
            [*_GIT, *arguments], capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
