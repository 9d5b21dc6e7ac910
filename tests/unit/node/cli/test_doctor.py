"""`fedelmy-node doctor` on the terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NOISY = """
import logging
from fedelmy_node.cli import doctor
from fedelmy_node.ops.doctor.site_checks import SiteExamination

def findings(self, tell):
    logging.getLogger("fedelmy_node.device").error("the trainer was killed by signal 6")
    return iter(())

SiteExamination.findings = findings
doctor.doctor()
"""


def test_the_log_of_the_checks_is_not_mixed_with_the_findings(tmp_path: Path) -> None:
    arguments = ("--state", str(tmp_path), "--site", "north", "--insecure")
    command = [sys.executable, "-c", NOISY, *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stderr == ""
