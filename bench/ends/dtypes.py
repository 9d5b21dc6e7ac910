"""What `wire_dtype` costs in accuracy: one chain of three sites on digits, simulated with each type.

    python bench/ends/dtypes.py       prints one JSON array as its last line

Started by `bench/transfer.py`; a process of its own, because training needs torch and transfers do not.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedelmy_launcher.partition import iid
from fedelmy_launcher.plans import compile_plan
from fedelmy_launcher.simulate import Simulation, data_of
from fedelmy_node.config.decode import decode
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import run_id
from fedelmy_node.domain.plan import StepKind

SITES = ("north", "south", "west")
DTYPES = ("float32", "bfloat16", "float16")
