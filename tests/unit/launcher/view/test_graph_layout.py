"""How a run looks: its shape is read from its steps, and every site and way has a place of its own
in the picture.
"""

from __future__ import annotations

import math
import re
from itertools import combinations
from typing import Any

import pytest

from fedelmy_launcher.view.graph_layout import Look, line_of, picture_of, shape_of
from fedelmy_launcher.view.history.fold import RunHistory
from fedelmy_launcher.view.report.run_picture import run_picture
from fedelmy_node.domain.plan import Plan
from tests.support.federations import make_plan
from tests.support.shapes import mesh, ring, star, superclients

MANY = tuple(f"site-{number:03}" for number in range(1, 101))
BOX = Look(half_width=71, half_height=37, step_x=266, step_y=150, per_row=4, margin=14)
DOT = Look(half_width=16, half_height=16, step_x=84, step_y=60, per_row=13, margin=14, round=True)
PLANS: dict[str, tuple[Plan, str]] = {
    "chain": (make_plan(*MANY[:6]), "line"),
    "long chain": (make_plan(*MANY), "line"),
    "ring": (ring(*MANY[:5], rounds=3), "ring"),
    "one time around": (ring(*MANY[:5], rounds=1), "line"),
    "long ring": (ring(*MANY, rounds=2), "ring"),
    "ring of two": (ring(*MANY[:2], rounds=2), "line"),
    "mesh": (mesh(*MANY[:5], rounds=2), "mesh"),
    "large mesh": (mesh(*MANY[:40]), "mesh"),
    "groups": (superclients(MANY[:3], MANY[3:5], MANY[5:9]), "groups"),
    "large groups": (superclients(MANY[:20], MANY[20:40]), "groups"),
    "star": (star(*MANY[:5]), "star"),
    "large star": (star(*MANY[:40]), "star"),
    "star of two": (star(*MANY[:2]), "line"),
    "one site": (make_plan("alone"), "line"),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_shape_is_read_from_the_steps(name: str) -> None:
    plan, kind = PLANS[name]
    assert shape_of(plan)["kind"] == kind


def test_groups_are_in_the_order_of_training() -> None:
    shape = shape_of(superclients(("b", "a"), ("d", "c")))
    assert shape["groups"] == [["b", "a"], ["d", "c"]]
    assert ["a", "d"] in shape["links"] and ["c", "b"] in shape["links"]
    assert shape_of(make_plan("north", "south")) == line_of(["north", "south"])


@pytest.mark.parametrize("name", PLANS)
def test_no_two_sites_lie_on_one_another(name: str) -> None:
    plan, _ = PLANS[name]
    names = list(dict.fromkeys(step.site for step in plan.steps))
    picture = picture_of(shape_of(plan), names, BOX, DOT)
    look = picture.look
    for one, other in combinations(picture.places.values(), 2):
        apart = (
            abs(one.x - other.x) >= 2 * look.half_width
            or abs(one.y - other.y) >= 2 * look.half_height
        )
        assert apart or (
            look.round and math.hypot(one.x - other.x, one.y - other.y) >= 2 * look.half_width
        )
    for place in picture.places.values():
        assert look.half_width <= place.x <= picture.width - look.half_width
        assert look.half_height <= place.y <= picture.height - look.half_height


def test_ways_there_and_back_do_not_lie_on_one_another() -> None:
    picture = picture_of(shape_of(mesh("a", "b", "c")), ["a", "b", "c"], BOX, DOT)
    there, back = picture.route("a", "b"), picture.route("b", "a")
    assert math.hypot(there.x - back.x, there.y - back.y) > 10
    line = picture_of(line_of(["a", "b", "c"]), ["a", "b", "c"], BOX, DOT)
    middle = line.places["b"].y
    assert line.route("a", "b").path.count("L") == 1
    assert line.route("a", "c").y < middle - 10 < middle + 10 < line.route("c", "b", result=True).y


@pytest.mark.parametrize("name", PLANS)
def test_every_run_has_a_picture(name: str) -> None:
    plan, _ = PLANS[name]
    history = RunHistory(plan).encoded()
    drawn = run_picture(history)
    assert len(re.findall(r'class="site ', drawn)) == len(history["sites"])
    assert len(re.findall(r'class="edge ', drawn)) == min(1000, len(history["shape"]["links"]))


def test_a_history_from_before_there_were_shapes() -> None:
    history: dict[str, Any] = RunHistory(make_plan("north", "south")).encoded()
    drawn = run_picture(history)
    del history["shape"]
    assert run_picture(history) == drawn
