"""Memory that is given back and taken again costs no page faults."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT = """
import resource, sys
import numpy as np
from fedelmy_node.training.torch_runtime import keep_freed_memory

assert sys.argv[1] == "usual" or keep_freed_memory()
np.ones(4 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.ones(4 << 20)  # 32 MiB, as activations have
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is another one")
def test_blocks_as_large_as_activations_are_kept() -> None:
    def faults(how: str) -> int:
        return int(
            subprocess.run(
                [sys.executable, "-c", COUNT, how], check=True, capture_output=True
            ).stdout
        )

    assert faults("kept") * 10 < faults("usual")
