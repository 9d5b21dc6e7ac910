"""The shape of a run, read from its steps alone: whatever the topology is called, this is how it looks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Literal

from fedelmy_launcher.outcome import OutlineStep
from fedelmy_node.domain.names import site_of
from fedelmy_node.domain.plan import StepKind

__all__ = ["Kind", "MAX_LINKS", "shape_of", "line_of"]

Kind = Literal["line", "ring", "mesh", "groups"]
MAX_LINKS: Final = 1000
"""Ways between sites that a history names; a larger mesh is drawn from what moved."""
Link = tuple[str, str]


def shape_of(steps: Iterable[OutlineStep]) -> dict[str, Any]:
    """`kind`, `groups` (sites in the order of training), and `links`: who hands what it trained to whom."""
    made = [step for step in steps if step.kind in (StepKind.TRAIN, StepKind.MERGE)]
    sites = list(dict.fromkeys(step.site for step in made))
    kinds = {step.id: step.kind for step in made}
    chained: dict[Link, None] = {}
    merged: dict[Link, None] = {}
    for step in made:
        for need in step.needs:
            link = (site_of(need), step.site)
            if link[0] == link[1] or link[0] not in sites:
                continue
            is_chain = step.kind == StepKind.TRAIN and kinds.get(need, StepKind.TRAIN) == StepKind.TRAIN
            (chained if is_chain else merged)[link] = None
    groups = _groups(sites, chained)
    links = list(dict.fromkeys([*chained, *merged]))
    return {
        "kind": _kind(sites, chained, bool(merged), groups),
        "groups": groups,
        "links": [list(link) for link in links[:MAX_LINKS]],
    }


def line_of(names: Sequence[str]) -> dict[str, Any]:
    """A chain: the shape of histories that were written before there were others."""
    links = [list(pair) for pair in pairwise(names)]
    return {"kind": "line", "groups": [list(names)], "links": links}


def _kind(sites: Sequence[str], chained: Mapping[Link, None], merges: bool, groups: Sequence[Sequence[str]]) -> Kind:
    if merges:
        return "groups" if any(len(group) > 1 for group in groups) else "mesh"
    leaves, enters = [sender for sender, _ in chained], [receiver for _, receiver in chained]
    if len(set(leaves)) < len(leaves) or len(set(enters)) < len(enters):
        return "mesh"
    return "ring" if len(sites) > 2 and len(chained) == len(sites) else "line"


def _groups(sites: Sequence[str], chained: Mapping[Link, None]) -> list[list[str]]:
    """Sites that chains connect, each in the order of training."""
    group = {site: number for number, site in enumerate(sites)}
    for sender, receiver in chained:
        one, other = sorted((group[sender], group[receiver]))
        group = {site: one if number == other else number for site, number in group.items()}
    return [[site for site in sites if group[site] == number] for number in dict.fromkeys(group.values())]
