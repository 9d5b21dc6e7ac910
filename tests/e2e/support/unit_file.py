"""A unit file, read and run without systemd: its command, environment and user, for machines on
which there is none.

Of the hardening, what `setpriv` can do is done: the user, no capabilities, no new privileges. Where
there is systemd, it runs the unit, with everything.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from pathlib import Path

__all__ = ["read_unit", "without_systemd"]


def read_unit(path: Path) -> dict[str, dict[str, list[str]]]:
    """Section -> key -> its values, in order."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    section = ""
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith(("#", ";")):
            key, _, value = line.partition("=")
            found[section][key].append(value)
    return found


def without_systemd(unit: Path, root: Path) -> str:
    """The unit's service as a shell command, for a machine whose root is `root`."""
    service = read_unit(unit)["Service"]
    (command,), (file,), (user,), (group,) = (
        service[key] for key in ("ExecStart", "EnvironmentFile", "User", "Group")
    )
    lines = (root / file.lstrip("/")).read_text("utf-8").splitlines()
    settings = [shlex.quote(line) for line in lines if line and not line.startswith("#")]
    (mask,) = service["UMask"]
    limits = "--no-new-privs --bounding-set=-all --inh-caps=-all"
    return (
        f"cd /; umask {mask}; ulimit -c 0; exec setpriv --reuid={user} --regid={group} --init-groups {limits} "
        f"env {' '.join(settings)} {command}"
    )
