"""What every site reaches without the others: the comparison for a federation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedelmy_launcher.plans.compiler import compile_plan
from fedelmy_launcher.simulate.simulation import Simulation, data_of
from fedelmy_node.domain.events import Event
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import RunId, SiteName, file_stem
from fedelmy_node.domain.step_traits import DELIVER


@dataclass(frozen=True, kw_only=True, slots=True)
class Alone:
    """A site's own model, tested on the distinct test data of all sites."""

    accuracy: float | None
    balanced_accuracy: float | None
    samples: int


def every_site_alone(
    federation: Federation,
    run: RunId,
    directory: Path,
    emit: Callable[[Event], None] = lambda event: None,
    *,
    code: Collection[str] = (),
    weights: Path | None = None,
) -> dict[SiteName, Alone]:
    """Train at each site with the federation's settings, as if it were the only one."""
    data, found = data_of(federation), {}
    # With deliver = "last", the data have one test set, which every site holds.
    tested = list(data) if federation.deliver == "all" else list(data)[:1]
    for member in federation.members:
        single = replace(federation, members=(member,), topology="chain", topology_settings={})
        plan = compile_plan(single, run)
        simulation = Simulation(
            plan, data, directory / file_stem(member.name), emit, code=code, weights=weights
        )
        simulation.run()
        delivered = next(step.id for step in plan.steps if step.kind == DELIVER)
        bundle = simulation.bundle(delivered)
        found[member.name] = _total([simulation.evaluate(bundle, site) for site in tested])
    return found


def _total(results: list[Mapping[str, Any]]) -> Alone:
    right, whole = Counter[str](), Counter[str]()
    for result in results:
        for name, row in result["classes"].items():
            right[name] += row["tp"]
            whole[name] += row["tp"] + row["fn"]
    samples = whole.total()
    shares = [right[name] / count for name, count in whole.items() if count]
    return Alone(
        accuracy=right.total() / samples if samples else None,
        balanced_accuracy=sum(shares) / len(shares) if len(shares) >= 2 else None,
        samples=samples,
    )
