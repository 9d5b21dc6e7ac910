"""What is said of a bundle's origin: a site holds it against the plan and its own journal, the
launcher against all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedelmy_launcher.control.contributors import contradictions_of
from fedelmy_launcher.control.find_run import reported_run
from fedelmy_launcher.control.sites import Sites
from fedelmy_launcher.control.status import RunStatus
from fedelmy_launcher.plans.compiler import signed_slices
from fedelmy_node.domain.artifact import Origin, Skip
from fedelmy_node.domain.errors import PeerError, TransferError
from fedelmy_node.domain.events import RunState, StepState
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.plan_steps import MAX_STEPS
from fedelmy_node.domain.reports import RunReport
from fedelmy_node.store.journal import Journal
from fedelmy_node.transfer.inbox import check_origin
from fedelmy_node.transfer.sender import _is_final
from tests.support.federations import make_plan, unsigned
from tests.support.journal_writes import meet_need, set_step
from tests.support.run_reports import make_report, origin

SKIP = {"on_unreachable": "skip", "patience_seconds": 5.0}
WAITS = make_plan("a", "b", "c", "d")
SKIPS = make_plan("a", "b", "c", "d", absence=SKIP)
RING = make_plan("a", "b", "c", topology="ring", topology_settings={"rounds": 2})
OWN, AROUND = "train.2@b>train.3@c", "train.1@a>train.3@c/train.2@b"
TRUE = origin("train.1@a", "train.2@b")
REASON = "x" * 400


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "journal.db", SiteName("c"))
    yield made
    made.close()


def check(journal: Journal, plan: Plan, edge: str, told: Origin) -> None:
    payload = signed_slices(plan, None)[SiteName("c")].payload
    if journal.find_run(plan.run) is None:
        journal.add_run(unsigned(payload))
    record = journal.run(plan.run)
    check_origin(record, next(known for known in record.slice.edges_in if known.id == edge), told)


@pytest.mark.parametrize(
    ("plan", "edge", "told"),
    [
        (WAITS, OWN, TRUE),
        (SKIPS, OWN, TRUE),
        (SKIPS, AROUND, origin("train.1@a", without=("train.2@b",), by="a")),
        (SKIPS, OWN, origin("train.2@b", without=("train.1@a",), by="b")),
        (
            SKIPS,
            OWN,
            origin("train.1@a", "train.2@b", without=("deliver.2@c",), by="a"),
        ),  # it was thought to be lost
    ],
)
def test_what_can_be_true_is_taken(journal: Journal, plan: Plan, edge: str, told: Origin) -> None:
    check(journal, plan, edge, told)


@pytest.mark.parametrize(
    ("plan", "edge", "told", "why"),
    [
        (WAITS, OWN, Origin(), "names no step"),
        (WAITS, OWN, origin("train.1@a"), "train.2@b"),
        (WAITS, OWN, origin("train.2@b", "train.2@b"), "twice"),
        (SKIPS, OWN, origin("train.1@a", "train.2@b", without=("train.1@a",)), "twice"),
        (SKIPS, AROUND, origin("train.1@a"), "skips train.2@b"),
        (WAITS, OWN, origin("train.2@b", without=("deliver.4@d",)), "does not allow skipping d"),
        (WAITS, OWN, origin("train.2@b", "train.8@c"), "train.8@c, which this site does not have"),
        (
            SKIPS,
            OWN,
            origin("train.2@b", without=("train.8@c",)),
            "train.8@c, which this site does not have",
        ),
        (
            SKIPS,
            OWN,
            origin("train.2@b", *(f"train.{n}@x" for n in range(MAX_STEPS))),
            "more steps",
        ),
        (
            SKIPS,
            OWN,
            Origin(
                contributors=(StepId("train.2@b"),),
                skipped=tuple(
                    Skip(step=StepId(f"train.{n}@x"), by=SiteName("b"), code="E", message=REASON)
                    for n in range(4000)
                ),
            ),
            "too much text",
        ),
    ],
)
def test_what_cannot_be_true_is_refused_for_good(
    journal: Journal, plan: Plan, edge: str, told: Origin, why: str
) -> None:
    with pytest.raises(TransferError, match=why) as caught:
        check(journal, plan, edge, told)
    assert caught.value.code == "E-TRANSFER-OFFER" and _is_final(caught.value)


@pytest.mark.parametrize("state", [StepState.RUNNING, StepState.SKIPPED])
def test_work_of_this_site_is_in_no_bundle_before_it_was_begun(
    journal: Journal, state: StepState
) -> None:
    """The sender asks again: after a restore, the step may have to be done once more.

    If this site has skipped the step instead, it cannot know what it had done before.
    """
    edge, told = (
        "train.5@b>train.6@c",
        origin("train.1@a", "train.2@b", "train.3@c", "train.4@a", "train.5@b"),
    )
    with pytest.raises(TransferError, match=r"train\.3@c.*has not done") as caught:
        check(journal, RING, edge, told)
    assert caught.value.code == "E-TRANSFER-SEQUENCE" and not _is_final(caught.value)
    set_step(journal, RING.run, StepId("train.3@c"), state)
    check(journal, RING, edge, told)


def test_what_came_before_counts(journal: Journal) -> None:
    """Two neighbours that each stay within the bounds must not make an origin that the next site
    refuses.
    """
    mesh = make_plan("a", "b", "c", topology="mesh")
    first, second = (edge.id for edge in mesh.slice_for(SiteName("c")).edges_in[:2])
    told = Origin(
        contributors=(
            StepId("train.1@a"),
            *(StepId(f"train.{n}@x") for n in range(10, MAX_STEPS - 10)),
        )
    )
    check(journal, mesh, first, told)
    edge = next(edge for edge in journal.run(mesh.run).slice.edges_in if edge.id == first)
    assert meet_need(journal, mesh.run, edge, told, {"sha256": "ab" * 32, "bytes": 7})
    check(journal, mesh, second, origin("train.1@b"))
    with pytest.raises(TransferError, match="more steps"):
        check(journal, mesh, second, origin("train.1@b", *(f"train.{n}@y" for n in range(20))))


# --- what the launcher makes of it
# --------------------------------------------------------------------------------


def reports(plan: Plan, *told: RunReport) -> dict[SiteName, RunReport]:
    """Of all sites; those that were not given tell nothing wrong."""
    whole = origin(*(step.id for step in plan.steps if step.kind == "train"))
    given = {report.site: report for report in told}
    return {
        site.site: given.get(site.site, make_report(plan, site.site, origin=whole))
        for site in plan.sites
    }


def test_honest_sites_do_not_contradict_each_other() -> None:
    without = origin("train.1@a", "train.3@c", "train.4@d", without=("train.2@b",), by="a")
    left_out = make_report(SKIPS, "b", steps={"train.2@b": StepState.SKIPPED}, origin=without)
    honest = {
        site: replace(report, origin=without) for site, report in reports(SKIPS, left_out).items()
    }
    assert contradictions_of(reports(SKIPS)) == contradictions_of(honest) == ()


@pytest.mark.parametrize(
    ("plan", "told", "sentence"),
    [
        (
            SKIPS,
            origin("train.1@a", "train.9@b"),
            "d says that train.9@b is in the model; b has no such step",
        ),
        (
            SKIPS,
            origin("train.9@ghost"),
            "d says that train.9@ghost is in the model; this run has no site",
        ),
        (
            WAITS,
            origin("train.1@a", without=("train.2@b",), by="a"),
            "d says that a skipped train.2@b; according to the",
        ),
    ],
)
def test_a_false_word_is_shown(plan: Plan, told: Origin, sentence: str) -> None:
    (found,) = contradictions_of(reports(plan, make_report(plan, "d", origin=told)))
    assert found.startswith(sentence)


def test_whoever_is_said_to_have_gone_around_a_site_is_asked() -> None:
    first = make_report(SKIPS, "b", origin=origin("train.1@a", "train.2@b"))
    last = make_report(
        SKIPS, "d", origin=origin("train.1@a", "train.4@d", without=("train.3@c",), by="b")
    )
    (found,) = contradictions_of(reports(SKIPS, first, last))
    assert found == "d says that b skipped train.3@c; b does not report it"


def test_whoever_was_left_out_is_believed_before_those_who_claim_its_work() -> None:
    left_out = make_report(
        SKIPS, "b", steps={"train.2@b": StepState.SKIPPED}, origin=origin("train.1@a")
    )
    known = reports(SKIPS, left_out)
    standing = RunStatus(reported_run(SKIPS.run, known), known, {})
    assert standing.is_subset and "b" not in standing.outcome.contributors
    (sentence,) = standing.encoded()["contradictions"]
    assert sentence == "a, c, d say that train.2@b is in the model; b says that it was skipped"


def test_a_site_that_was_made_up_is_not_looked_for() -> None:
    known = reports(SKIPS, make_report(SKIPS, "d", origin=origin("train.9@ghost")))
    assert "ghost" not in {step.site for step in reported_run(SKIPS.run, known).steps}
    del known[SiteName("b")]  # one that is silent may know it
    assert "ghost" in {step.site for step in reported_run(SKIPS.run, known).steps}
    with (
        Sites(None, None) as sites,
        pytest.raises(PeerError, match=r"E-PEER-UNREACHABLE.*the address of ghost"),
    ):
        sites.client(SiteName("ghost"))


def test_while_a_run_goes_on_a_word_may_be_newer_than_another() -> None:
    running = make_report(SKIPS, "b", RunState.RUNNING, origin=origin("train.1@a"))
    assert contradictions_of(reports(SKIPS, running)) == ()
