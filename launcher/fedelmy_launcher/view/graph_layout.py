"""A run as a graph of sites: its shape, and the layout of a picture of it.

A chain fills rows in alternating directions, a ring and a mesh are circles, a star is a circle
around the site that collects, groups get their own rows. An edge to a site that is not the neighbour curves to its left: edges in opposite directions
never overlap, an edge that bypasses a site passes above it, and the result returns below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal

from fedelmy_launcher.control.contributors import Outline
from fedelmy_node.domain.names import site_of

Kind = Literal["line", "ring", "mesh", "star", "groups"]
MAX_LINKS: Final = 1000
"""Planned edges listed in a history; a larger mesh is drawn from its transfers."""
Link = tuple[str, str]


def shape_of(outline: Outline) -> dict[str, Any]:
    """`kind`, `groups` (sites in training order) and `links` (pairs of sender and receiver)."""
    traits = {step.id: outline.traits(step.id) for step in outline.steps}
    made = [s for s in outline.steps if traits[s.id].has_output and not traits[s.id].passes_on]
    sites = list(dict.fromkeys(step.site for step in made))
    gathering = {step.id for step in made if traits[step.id].gathers or len(step.needs) > 1}
    chained: dict[Link, None] = {}
    merged: dict[Link, None] = {}
    for step in made:
        for need in step.needs:
            link = (site_of(need), step.site)
            if link[0] == link[1] or link[0] not in sites:
                continue
            (merged if gathering & {step.id, need} else chained)[link] = None
    merged = {link: None for link in merged if link not in chained}
    groups = _groups(sites, chained)
    links = list(dict.fromkeys([*chained, *merged]))
    return {
        "kind": _kind(sites, chained, merged, groups),
        "groups": groups,
        "links": [list(link) for link in links[:MAX_LINKS]],
    }


def hub_of(links: Sequence[Sequence[str]]) -> str | None:
    """The only site that several others send to, or that sends to several others."""
    common = set(links[0]).intersection(*links) if len(links) > 1 else set()
    return common.pop() if len(common) == 1 else None


def line_of(names: Sequence[str]) -> dict[str, Any]:
    """A chain: the shape of histories that do not name one."""
    links = [list(pair) for pair in pairwise(names)]
    return {"kind": "line", "groups": [list(names)], "links": links}


def _kind(
    sites: Sequence[str],
    chained: Mapping[Link, None],
    merged: Mapping[Link, None],
    groups: list[list[str]],
) -> Kind:
    if merged and (len(groups) == 1 or (len(merged) == 1 and not chained)):
        return "line"
    if merged:
        is_star = not chained and hub_of(list(merged)) is not None
        several = any(len(group) > 1 for group in groups)
        return "star" if is_star else "groups" if several else "mesh"
    leaves, enters = [sender for sender, _ in chained], [receiver for _, receiver in chained]
    if len(set(leaves)) < len(leaves) or len(set(enters)) < len(enters):
        return "mesh"
    return "ring" if len(sites) > 2 and len(chained) == len(sites) else "line"


def _groups(sites: Sequence[str], chained: Mapping[Link, None]) -> list[list[str]]:
    """Sites connected by chains, each group in training order."""
    group = {site: number for number, site in enumerate(sites)}
    for sender, receiver in chained:
        one, other = sorted((group[sender], group[receiver]))
        group = {site: one if number == other else number for site, number in group.items()}
    numbers = dict.fromkeys(group.values())
    return [[site for site in sites if group[site] == number] for number in numbers]


CROWD: Final = 24
"""With more sites, each is drawn small, with only its name."""
_ROUND_LEAST: Final = 2
_MOST_BEND: Final = 64.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """Size and spacing of sites; `round` ones are as wide as high."""

    half_width: float
    half_height: float
    step_x: float
    step_y: float
    per_row: int
    margin: float
    below: float = 0.0
    """Space for text under a site."""
    round: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """The centre of a site; `angle` (degrees) points its name outwards from a circle."""

    x: float
    y: float
    angle: float | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """The SVG path of an edge between two sites, and the position of its label."""

    path: str
    x: float
    y: float
    anchor: str
    room: float
    """Width available for the label."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The layout of a run."""

    look: Look
    places: Mapping[str, Place]
    neighbours: frozenset[tuple[str, str]]
    """Pairs connected by a straight line."""
    width: float
    height: float
    small: bool

    def route(self, sender: str, receiver: str, *, result: bool = False) -> Route:
        """Straight to a neighbour during training; curved for the result and for all others."""
        a, b = self.places[sender], self.places[receiver]
        wide, high = b.x - a.x, b.y - a.y
        long = math.hypot(wide, high) or 1.0
        straight = (sender, receiver) in self.neighbours and not result
        bend = 0.0 if straight else min(_MOST_BEND, 0.14 * long + 16)
        # Left of the direction of travel: y grows downwards.
        mx, my = (a.x + b.x) / 2 + bend * high / long, (a.y + b.y) / 2 - bend * wide / long
        x1, y1 = self._rim(a, mx, my, 0.0)
        x2, y2 = self._rim(b, mx, my, 3.0)
        path = f"M {x1:.1f} {y1:.1f} "
        path += f"L {x2:.1f} {y2:.1f}" if straight else f"Q {mx:.1f} {my:.1f} {x2:.1f} {y2:.1f}"
        x, y = (x1 + 2 * mx + x2) / 4, (y1 + 2 * my + y2) / 4
        if abs(wide) < abs(high):
            return Route(path, x + 7, y, "start", self.look.step_x - 14)
        room = math.hypot(x2 - x1, y2 - y1) - 8
        return Route(path, x, y - 7 if wide > 0 or not bend else y + 14, "middle", room)

    def _rim(self, place: Place, x: float, y: float, gap: float) -> tuple[float, float]:
        """Where a line from a site's centre towards a point crosses its border."""
        dx, dy = x - place.x, y - place.y
        long = math.hypot(dx, dy) or 1.0
        reach = self.look.half_width
        if not self.look.round:
            across = reach * long / abs(dx) if dx else math.inf
            reach = min(across, self.look.half_height * long / abs(dy) if dy else math.inf)
        reach = min(reach + gap, long)
        return place.x + dx / long * reach, place.y + dy / long * reach


def picture_of(shape: Mapping[str, Any], names: Sequence[str], large: Look, small: Look) -> Picture:
    """Lay out these sites in training order; `small` is used for more than `CROWD` sites."""
    is_small = len(names) > CROWD
    look = small if is_small else large
    if shape["kind"] in ("ring", "mesh") and len(names) > _ROUND_LEAST:
        places = _circle(names, look, is_small)
        links = list(pairwise([*names, names[0]])) if shape["kind"] == "ring" else []
    elif shape["kind"] == "star" and (hub := hub_of(shape["links"])) in names:
        # A quarter: no site is straight above or below, where names are written.
        places = _circle([name for name in names if name != hub], look, is_small, begin=0.25)
        places[str(hub)] = Place(0.0, 0.0)
        links = [(sender, receiver) for sender, receiver in shape["links"]]
    else:
        known = {name for group in shape["groups"] for name in group}
        groups = [[name for name in group if name in names] for group in shape["groups"]]
        groups += [[name] for name in names if name not in known]
        if shape["kind"] != "groups":
            groups = [list(names)]
        places = _rows(groups, look)
        links = [pair for group in groups for pair in pairwise(group)]
    return _fitted(look, places, frozenset(links), is_small)


def _rows(groups: Sequence[Sequence[str]], look: Look) -> dict[str, Place]:
    """Each group from left to right, then back in the next row, so neighbours stay adjacent."""
    places, row = {}, 0
    for group in groups:
        for number, name in enumerate(group):
            down, across = divmod(number, look.per_row)
            column = across if down % 2 == 0 else look.per_row - 1 - across
            places[name] = Place(column * look.step_x, (row + down) * look.step_y)
        row += -(-len(group) // look.per_row)
    return places


def _circle(
    names: Sequence[str], look: Look, is_small: bool, begin: float = 0.0
) -> dict[str, Place]:
    """Clockwise from the top, or from a part of the distance between two sites after it."""
    many = len(names)
    apart = 2.6 * look.half_height if is_small else look.step_y
    high = max(apart * many / (2 * math.pi), 1.1 * apart)
    # Sites are wider than high.
    wide = high if is_small or look.round else high * 1.6
    places = {}
    for number, name in enumerate(names):
        turn = 2 * math.pi * (number + begin) / many
        angle = math.degrees(turn) - 90 if is_small else None
        places[name] = Place(wide * math.sin(turn), -high * math.cos(turn), angle)
    return places


def _fitted(
    look: Look, places: dict[str, Place], neighbours: frozenset[tuple[str, str]], is_small: bool
) -> Picture:
    """Shift everything into the visible area."""
    outside = any(place.angle is not None for place in places.values())
    side = look.margin + look.half_width + (70.0 if outside else 0.0)
    top = look.margin + look.half_height + (70.0 if outside else 0.0)
    left, high = min(p.x for p in places.values()) - side, min(p.y for p in places.values()) - top
    moved = {name: Place(p.x - left, p.y - high, p.angle) for name, p in places.items()}
    width = max(place.x for place in moved.values()) + side
    height = max(place.y for place in moved.values()) + top + look.below
    return Picture(look, moved, neighbours, round(width, 1), round(height, 1), is_small)
