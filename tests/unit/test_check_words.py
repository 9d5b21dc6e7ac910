"""`fedelmy-launch check` with sites whose answers are odd: it says what there is to say."""

from __future__ import annotations

import math

from federations import make_plan

from fedelmy_launcher.checking import estimate
from fedelmy_launcher.cli.check import _counts
from fedelmy_node.domain.findings import Finding
from fedelmy_node.domain.names import SiteName


def test_a_site_may_tell_some_of_its_counts() -> None:
    assert _counts({"samples": {"train": 9, "validation": 1, "test": 2}}) == "9 training, 1 validation, 2 test samples"
    assert _counts({"samples": {"train": 9}}) == "9 training samples"
    assert _counts({"samples": {}}) == "does not disclose how many samples it has"


def test_no_speed_that_a_site_tells_makes_a_run_endless() -> None:
    facts = {"bytes_per_second": 5e-324}
    slow = Finding(subject="peer south", check="speed", verdict="ok", message="", facts=facts)
    found = estimate(make_plan("north", "south"), {SiteName("north"): (slow,)}, 2**60)
    assert math.isfinite(found.seconds)
