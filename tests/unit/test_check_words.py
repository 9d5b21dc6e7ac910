"""`fedelmy-launch check` with sites whose answers are odd: it says what there is to say."""

from __future__ import annotations

import math

from federations import make_plan

from fedelmy_launcher.checking import Checked, estimate
from fedelmy_launcher.cli.check import _counts, _warnings
from fedelmy_node.domain.findings import Finding
from fedelmy_node.domain.names import SiteName
from fedelmy_node.rpc.convert import description_from_pb
from fedelmy_proto.v1 import control_pb2


def test_a_site_may_tell_some_of_its_counts() -> None:
    assert _counts({"samples": {"train": 9, "validation": 1, "test": 2}}) == "9 training, 1 validation, 2 test samples"
    assert _counts({"samples": {"train": 9}}) == "9 training samples"
    assert _counts({"samples": {}}) == "does not disclose how many samples it has"


def test_no_speed_that_a_site_tells_makes_a_run_endless() -> None:
    facts = {"bytes_per_second": 5e-324}
    slow = Finding(subject="peer south", check="speed", verdict="ok", message="", facts=facts)
    found = estimate(make_plan("north", "south"), {SiteName("north"): (slow,)}, 2**60)
    assert math.isfinite(found.seconds)


def test_a_node_that_does_not_tell_plans_apart_is_a_warning() -> None:
    about = {"version": "0.1.0", "contracts": ["fedelmy.v1"]}
    older = description_from_pb(control_pb2.DescribeReply(site="south", **about))
    newer = description_from_pb(control_pb2.DescribeReply(site="north", names_plans=True, **about))
    both = {SiteName("north"): newer, SiteName("south"): older}
    (warning,) = _warnings(Checked(nodes=both, answers={}, refusals=[], findings={}, skewed=[]))
    assert warning.startswith("south: older software")
