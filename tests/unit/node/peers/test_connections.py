"""To whom a site sends, whatever a plan calls it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedelmy_node.config.site_file import Given, load_site_config
from fedelmy_node.domain.errors import ConsentError, RunError
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.plan import Neighbour, Slice
from fedelmy_node.domain.plan_steps import Edge, Step
from fedelmy_node.domain.step_traits import DELIVER, EVALUATE, TRAIN
from fedelmy_node.peers.connections import Peers
from tests.support.federations import make_plan

SOUTH, WEST = SiteName("south"), SiteName("west")


def check(tmp_path: Path, plan: Slice, *peers: str) -> None:
    config = load_site_config(Given(state=tmp_path, insecure=True, site="south", peers=peers))
    Peers(config, SOUTH, None).check(plan)


def handed(plan: Slice, source: str) -> Edge:
    """An edge to west that poses as the delivery of a result."""
    return Edge(
        source=StepId(source),
        target=StepId("deliver.7@west"),
        sender=SOUTH,
        receiver=WEST,
        carries=DELIVER,
        need=StepId(source),
    )


def test_what_a_chain_needs(tmp_path: Path) -> None:
    plan = make_plan("north", "south", "west").slice_for(SOUTH)
    check(tmp_path, plan, "west=127.0.0.1:1")  # and the result goes back to north
    with pytest.raises(ConsentError, match=r"E-CONSENT-PEER.*west"):
        check(tmp_path, plan)


def test_a_training_output_is_no_result_whatever_the_plan_calls_it(tmp_path: Path) -> None:
    plan = make_plan("west", "south", deliver="last").slice_for(SOUTH)
    check(tmp_path, plan)
    with pytest.raises(ConsentError, match=r"E-CONSENT-PEER.*west"):
        check(tmp_path, replace(plan, edges_out=(handed(plan, "train.2@south"),)))
    # The result, to whose making west contributed, is another matter: `accept_from` decides about
    # that.
    check(tmp_path, replace(plan, edges_out=(handed(plan, "deliver.1@south"),)))


def test_who_only_has_something_evaluated_has_contributed_nothing(tmp_path: Path) -> None:
    """An accomplice of the operator who takes no part in the training, and is to get its result."""
    plan = make_plan("south", deliver="last").slice_for(SOUTH)
    posed = Step(
        id=StepId("evaluate.7@south"),
        site=SOUTH,
        kind=EVALUATE,
        visit=0,
        needs=(StepId("train.7@west"),),
    )
    edge = Edge(
        source=StepId("train.7@west"),
        target=posed.id,
        sender=WEST,
        receiver=SOUTH,
        carries=EVALUATE,
        need=StepId("train.7@west"),
    )
    plan = replace(
        plan,
        steps=(*plan.steps, posed),
        edges_in=(edge,),
        edges_out=(handed(plan, "deliver.1@south"),),
        neighbours=(Neighbour(site=WEST, address="127.0.0.1:1"),),  # type: ignore[arg-type]
    )
    with pytest.raises(ConsentError, match=r"E-CONSENT-PEER.*west"):
        check(tmp_path, plan)
    with pytest.raises(RunError, match=r"E-RUN-PLAN.*carries"):
        replace(plan, edges_in=(replace(edge, carries=TRAIN),))
