"""deploy/systemd: what the unit promises is in it, and systemd itself finds nothing wrong with it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.support.unit_file import read_unit

DIRECTORY = Path(__file__).parents[2] / "deploy" / "systemd"
UNIT = DIRECTORY / "fedelmy-node.service"
PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
SYSTEM_UNITS = Path("/usr/lib/systemd/system")

needs_analyze = pytest.mark.skipif(
    not shutil.which("systemd-analyze") or not SYSTEM_UNITS.is_dir(),
    reason="systemd-analyze is not installed",
)


def test_the_unit_says_what_a_node_needs() -> None:
    service = read_unit(UNIT)["Service"]
    for key, value in {
        "Type": "notify",
        "User": "fedelmy",
        "StateDirectory": "fedelmy",
        "StateDirectoryMode": "0700",
        "UMask": "0077",
        "Restart": "on-failure",
        "RestartPreventExitStatus": "2 7",  # what only a person mends is no reason to try for ever
        "TimeoutStopSec": "45",
        "KillMode": "mixed",
        "OOMPolicy": "continue",
    }.items():
        assert service[key] == [value], key


def test_the_unit_is_hardened() -> None:
    service = read_unit(UNIT)["Service"]
    assert service["ProtectSystem"] == ["strict"]
    assert service["CapabilityBoundingSet"] == [""]
    assert service["SystemCallFilter"] == ["@system-service", "~@privileged"]
    for key in (
        "NoNewPrivileges",
        "ProtectHome",
        "PrivateTmp",
        "PrivateDevices",
        "PrivateMounts",
        "ProtectClock",
        "ProtectControlGroups",
        "ProtectHostname",
        "ProtectKernelLogs",
        "ProtectKernelModules",
        "ProtectKernelTunables",
        "LockPersonality",
        "RestrictNamespaces",
        "RestrictRealtime",
        "RestrictSUIDSGID",
        "RemoveIPC",
    ):
        assert service[key] == ["yes"], key
    # What torch does not survive.
    assert "MemoryDenyWriteExecute" not in service
    assert "ProcSubset" not in service


def test_unit_environment_and_command_agree() -> None:
    (command,) = read_unit(UNIT)["Service"]["ExecStart"]
    (file,) = read_unit(UNIT)["Service"]["EnvironmentFile"]
    script = (DIRECTORY / "fedelmy-node").read_text()
    assert command.split()[0] in script
    assert f". {file}" in script
    settings = (DIRECTORY / "node.env").read_text()
    assert "FEDELMY_STATE=/var/lib/fedelmy\n" in settings
    assert "FEDELMY_CONFIG=/etc/fedelmy/site.toml\n" in settings


@needs_analyze
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    """In a root of its own: the unit, the system's own units, and something to execute."""
    units = tmp_path / "usr/lib/systemd/system"
    shutil.copytree(SYSTEM_UNITS, units, symlinks=True)
    shutil.copy(UNIT, units)
    program = tmp_path / "opt/fedelmy/bin/fedelmy-node"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    drop_in = units / "fedelmy-node.service.d/gpu.conf"
    for with_gpu in (False, True):
        if with_gpu:
            drop_in.parent.mkdir()
            shutil.copy(DIRECTORY / "gpu.conf", drop_in)
        done = analyze("verify", "--man=no", f"--root={tmp_path}", UNIT.name)
        assert done.returncode == 0, done.stdout
        assert UNIT.name not in done.stdout, done.stdout


@needs_analyze
def test_the_exposure_is_what_the_page_says() -> None:
    done = analyze("security", "--offline=true", "--no-pager", str(UNIT))
    assert done.returncode == 0, done.stdout
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    said = re.search(r"Overall exposure level for \S+: ([\d.]+)", PAGE.read_text("utf-8"))
    assert level and said
    # Other versions of systemd count a little differently.
    assert abs(float(level[1]) - float(said[1])) <= 0.3


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
