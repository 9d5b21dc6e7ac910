"""Which run a command is about if none is named, and what is said if nobody tells."""

from __future__ import annotations

from typing import cast

import pytest

from fedelmy_launcher.control.find_run import find_run, newest_run
from fedelmy_launcher.control.sites import Refusal, Sites
from fedelmy_node.domain.errors import IdentityError, RunError
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.reports import NodeDescription, RunSummary


class Known:
    """Sites that know these runs, or say no."""

    def __init__(self, *runs: tuple[str, str, float], refusals: int = 0) -> None:
        self.runs, self.refusals = runs, refusals

    def describe(self) -> tuple[dict[SiteName, NodeDescription], list[Refusal]]:
        summaries = tuple(
            RunSummary(run=RunId(run), state=RunState(state), federation="xray", changed_at=at)
            for run, state, at in self.runs
        )
        node = NodeDescription(
            site=SiteName("north"),
            version="1",
            contracts=("v1",),
            torch="",
            platform="",
            device="cpu",
            data="",
            peers=(),
            free_bytes=1,
            clock=0.0,
            runs=summaries,
        )
        no = IdentityError("E-IDENTITY-REVOKED", "the certificate of operator/eve was revoked")
        refusals = [Refusal(SiteName(f"site-{number}"), no) for number in range(self.refusals)]
        return ({} if refusals else {node.site: node}), refusals


def found(*runs: tuple[str, str, float]) -> tuple[str, str | None]:
    newest, going = newest_run(cast(Sites, Known(*runs)), "xray")
    return newest.run, going.run if going else None


def test_the_newest_run_is_meant_whatever_became_of_it() -> None:
    assert found(("a", "done", 1.0), ("b", "running", 2.0)) == ("b", None)
    assert found(("a", "done", 1.0), ("b", "cancelled", 2.0)) == ("b", None)
    assert found(("a", "running", 1.0), ("b", "failed", 2.0)) == ("b", None)


def test_a_run_that_goes_on_is_found_behind_one_that_was_cancelled() -> None:
    runs = (("a", "running", 1.0), ("b", "cancelled", 2.0))
    assert found(*runs) == ("b", "a")
    assert find_run(cast(Sites, Known(*runs)), None, "xray") == "a"
    assert find_run(cast(Sites, Known(*runs)), "b", "xray") == "b"
    # Cancelled at one site, and the other one has not heard of it yet.
    assert found(("b", "running", 1.0), ("b", "cancelled", 2.0)) == ("b", None)


@pytest.mark.parametrize(("refusals", "code"), [(1, "E-IDENTITY-REVOKED"), (3, "E-RUN-REFUSED")])
def test_who_only_asks_is_not_told_that_nothing_was_started(refusals: int, code: str) -> None:
    with pytest.raises((RunError, IdentityError)) as raised:
        newest_run(cast(Sites, Known(refusals=refusals)), "xray")
    assert raised.value.code == code
    assert "started" not in raised.value.hint and "run again" not in raised.value.hint
    assert "site-0" in raised.value.message


def test_no_site_knows_a_run() -> None:
    with pytest.raises(RunError, match="no run of other found"):
        newest_run(cast(Sites, Known(("a", "done", 1.0))), "other")
