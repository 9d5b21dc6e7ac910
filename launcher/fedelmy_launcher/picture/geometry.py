"""Where the sites of a run go in a picture, and the ways between them: for the report and for the dashboard.

A chain goes to and fro in rows, a ring and a mesh are circles, groups are rows of their own. A way that does not lead
to the neighbour bends to its left: so ways there and back never lie on one another, a way around a site passes above it
and the result's way back below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

__all__ = ["Look", "Place", "Way", "Picture", "picture_of", "CROWD"]

CROWD: Final = 24
"""With more sites, each is drawn small, with its name alone."""
_ROUND_LEAST: Final = 2
_MOST_BEND: Final = 64.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """How large a site is drawn, and how far apart; `round` ones are as wide as high."""

    half_width: float
    half_height: float
    step_x: float
    step_y: float
    per_row: int
    margin: float
    below: float = 0.0
    """Room for text under a site."""
    round: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """The middle of a site; `angle`: where its name goes, in degrees, if it goes outwards from a circle."""

    x: float
    y: float
    angle: float | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """A path from one site's rim to another's, and where a text belongs that is about it."""

    path: str
    x: float
    y: float
    anchor: str
    room: float
    """For that text."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A run of some shape, laid out."""

    look: Look
    places: Mapping[str, Place]
    neighbours: frozenset[tuple[str, str]]
    """Whom a straight line leads to."""
    width: float
    height: float
    small: bool

    def way(self, sender: str, receiver: str, *, result: bool = False) -> Way:
        """From one site to another; the result's ways bend, training's ways to the neighbour do not."""
        a, b = self.places[sender], self.places[receiver]
        wide, high = b.x - a.x, b.y - a.y
        long = math.hypot(wide, high) or 1.0
        straight = (sender, receiver) in self.neighbours and not result
        bend = 0.0 if straight else min(_MOST_BEND, 0.14 * long + 16)
        # To the left of the way: y grows downwards.
        mx, my = (a.x + b.x) / 2 + bend * high / long, (a.y + b.y) / 2 - bend * wide / long
        x1, y1 = self._rim(a, mx, my, 0.0)
        x2, y2 = self._rim(b, mx, my, 3.0)
        path = f"M {x1:.1f} {y1:.1f} "
        path += f"L {x2:.1f} {y2:.1f}" if straight else f"Q {mx:.1f} {my:.1f} {x2:.1f} {y2:.1f}"
        x, y = (x1 + 2 * mx + x2) / 4, (y1 + 2 * my + y2) / 4
        if abs(wide) < abs(high):
            return Way(path, x + 7, y, "start", self.look.step_x - 14)
        room = math.hypot(x2 - x1, y2 - y1) - 8
        return Way(path, x, y - 7 if wide > 0 or not bend else y + 14, "middle", room)

    def _rim(self, place: Place, x: float, y: float, gap: float) -> tuple[float, float]:
        """Where a line from a site's middle towards a point leaves it."""
        dx, dy = x - place.x, y - place.y
        long = math.hypot(dx, dy) or 1.0
        if self.look.round:
            reach = self.look.half_width
        else:
            reach = min(
                self.look.half_width * long / abs(dx) if dx else math.inf,
                self.look.half_height * long / abs(dy) if dy else math.inf,
            )
        reach = min(reach + gap, long)
        return place.x + dx / long * reach, place.y + dy / long * reach


def picture_of(shape: Mapping[str, Any], names: Sequence[str], large: Look, small: Look) -> Picture:
    """All of these sites, in the order of training; `small` is for a crowd."""
    is_small = len(names) > CROWD
    look = small if is_small else large
    if shape["kind"] in ("ring", "mesh") and len(names) > _ROUND_LEAST:
        places = _circle(names, look, is_small)
        links = list(pairwise([*names, names[0]])) if shape["kind"] == "ring" else []
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
    """Every group from left to right, and back in the next row if it is long: neighbours stay neighbours."""
    places, row = {}, 0
    for group in groups:
        for number, name in enumerate(group):
            down, across = divmod(number, look.per_row)
            column = across if down % 2 == 0 else look.per_row - 1 - across
            places[name] = Place(column * look.step_x, (row + down) * look.step_y)
        row += -(-len(group) // look.per_row)
    return places


def _circle(names: Sequence[str], look: Look, is_small: bool) -> dict[str, Place]:
    """Clockwise from the top."""
    many = len(names)
    apart = 2.6 * look.half_height if is_small else look.step_y
    high = max(apart * many / (2 * math.pi), 1.1 * apart)
    # A wide site needs more room to its sides than above it.
    wide = high if is_small or look.round else high * 1.6
    places = {}
    for number, name in enumerate(names):
        turn = 2 * math.pi * number / many
        angle = math.degrees(turn) - 90 if is_small else None
        places[name] = Place(wide * math.sin(turn), -high * math.cos(turn), angle)
    return places


def _fitted(look: Look, places: dict[str, Place], neighbours: frozenset[tuple[str, str]], is_small: bool) -> Picture:
    """Moved so that everything is inside."""
    outside = any(place.angle is not None for place in places.values())
    side = look.margin + look.half_width + (70.0 if outside else 0.0)
    top = look.margin + look.half_height + (70.0 if outside else 0.0)
    left, high = min(place.x for place in places.values()), min(place.y for place in places.values())
    moved = {name: Place(p.x - left + side, p.y - high + top, p.angle) for name, p in places.items()}
    width = max(place.x for place in moved.values()) + side
    height = max(place.y for place in moved.values()) + top + look.below
    return Picture(look, moved, neighbours, round(width, 1), round(height, 1), is_small)
