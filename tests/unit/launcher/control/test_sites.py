"""Which plan a launcher goes on with when a run is asked for again."""

from __future__ import annotations

import pytest

from fedelmy_launcher.control.sites import Refusal, refused
from fedelmy_launcher.control.start_run import _plan_id
from fedelmy_node.domain.errors import DataError
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import SiteName
from tests.support.federations import make_plan
from tests.support.run_reports import make_report

OLD, OTHER = "0" * 32, "1" * 32


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({}, None),
        ({"north": (RunState.RUNNING, "", OLD), "south": (RunState.DONE, "", OLD)}, OLD),
        ({"north": (RunState.EXPIRED, "", OLD), "south": (RunState.PREPARED, "", OLD)}, OLD),
        ({"north": (RunState.EXPIRED, "", OLD)}, None),
        ({"north": (RunState.RUNNING, "", "")}, ""),  # of older software
        ({"north": (RunState.CANCELLED, "E-CONSENT-REFUSED", OLD)}, OLD),
        # A person refused it, and it was withdrawn elsewhere.
        (
            {
                "north": (RunState.CANCELLED, "", OLD),
                "south": (RunState.CANCELLED, "E-CONSENT-REFUSED", OLD),
            },
            OLD,
        ),
        ({"north": (RunState.CANCELLED, "E-RUN-CANCELLED", OLD)}, None),
        # It was cancelled, and its second site will hear so in a moment.
        (
            {
                "north": (RunState.CANCELLED, "E-RUN-CANCELLED", OLD),
                "south": (RunState.PREPARED, "", OLD),
            },
            None,
        ),
        (
            {
                "north": (RunState.CANCELLED, "E-RUN-CANCELLED", OLD),
                "south": (RunState.RUNNING, "", OTHER),
            },
            OTHER,
        ),
    ],
)
def test_the_plan_that_a_run_goes_on_with(
    told: dict[str, tuple[RunState, str, str]], kept: str | None
) -> None:
    plan = make_plan()
    reports = [
        make_report(plan, site, state, code=code, plan_id=plan_id)
        for site, (state, code, plan_id) in told.items()
    ]
    found = _plan_id(reports)
    assert found == kept if kept is not None else found not in (OLD, OTHER, "")


def refusal(site: str, message: str) -> Refusal:
    return Refusal(SiteName(site), DataError("E-DATA-EMPTY", message))


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("a: no images", "a: no images"),
        ("site a has no images", "site a has no images"),
        ("a-2 has no banana", "a: a-2 has no banana"),  # these contain the name, but are not it
    ],
)
def test_a_refusal_names_its_site_once(message: str, shown: str) -> None:
    assert refused([refusal("a", message)]).message == shown
    both = refused([refusal("a", message), refusal("b", "b: no labels")]).message
    assert "  b: E-DATA-EMPTY: no labels\n" in both and "b: E-DATA-EMPTY: b:" not in both
