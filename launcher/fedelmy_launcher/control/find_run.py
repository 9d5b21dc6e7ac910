"""Find a run: from any of its sites to all of them, and from their reports to its outline.

Every site knows the addresses of its neighbours, so one address is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from fedelmy_launcher.control.contributors import OutlineStep, knows_all_sites
from fedelmy_launcher.control.sites import Refusal, Sites
from fedelmy_node.domain.errors import RunError
from fedelmy_node.domain.names import Address, RunId, SiteName, StepId, edge_ends, site_of
from fedelmy_node.domain.reports import RunReport
from fedelmy_node.domain.step_traits import DELIVER, EVALUATE, MERGE, operation_of
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.channel import open_channel
from fedelmy_node.rpc.clients import OperatorClient

_MAX_SITES: Final = 10_000
"""The limit of a federation: invented neighbours must not keep the search going forever."""
_ORDER: Final = {DELIVER: 1, EVALUATE: 2}


@dataclass(frozen=True, slots=True)
class ReportedStep:
    """A step as reported by sites."""

    id: StepId
    site: SiteName
    kind: str
    needs: tuple[StepId, ...] = ()
    """Inputs from other sites, and those that neighbours report."""


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """The known part of a run's plan; for a silent site, what its neighbours report."""

    run: RunId
    federation: str
    steps: tuple[ReportedStep, ...]
    """In order of training, then of delivery."""


def site_at(address: Address, identity: Identity | None) -> SiteName:
    """The name of the site at an address."""
    channel = open_channel(address, identity, expect_role="site", insecure_name="operator/operator")
    client = OperatorClient(channel, address)
    try:
        return client.describe().site
    finally:
        client.close()


def discover(sites: Sites, run: RunId) -> tuple[dict[SiteName, RunReport], list[Refusal]]:
    """Every site's report of a run; newly found neighbours are added to `sites`.

    An address in `sites` takes precedence over the one that neighbours report.
    """
    reports: dict[SiteName, RunReport] = {}
    refusals: list[Refusal] = []
    asking = list(sites.addresses)
    while asking:
        found, silent = sites.reports(run, asking)
        reports |= found
        refusals += silent
        near = {n.site: n.address for report in found.values() for n in report.neighbours}
        asking = [site for site in near if site not in sites.addresses]
        if len(sites.addresses) + len(asking) > _MAX_SITES:
            message = f"the sites of run {run} report more than {_MAX_SITES} others"
            raise RunError("E-RUN-PLAN", message)
        sites.addresses.update({site: near[site] for site in asking})
    return reports, refusals


def reported_run(
    run: RunId, reports: Mapping[SiteName, RunReport], known: Iterable[OutlineStep] = ()
) -> ReportedRun:
    """The outline of a run from at least one report; `known`: steps found before."""
    federation = next((report.federation for report in reports.values() if report.federation), "")
    steps = {step.id: ReportedStep(step.id, step.site, step.kind, step.needs) for step in known}
    for report in reports.values():
        for step in _steps(report):
            before = steps.get(step.id, step)
            # Both ends of an edge report it; a site knows no steps beyond its neighbours.
            steps[step.id] = replace(step, needs=tuple(dict.fromkeys([*before.needs, *step.needs])))
    if reports and knows_all_sites(reports):  # other reported steps do not exist
        steps = {step.id: step for step in steps.values() if step.site in reports}
    return ReportedRun(run, federation, tuple(sorted(steps.values(), key=_place)))


def _steps(report: RunReport) -> Iterator[ReportedStep]:
    """The site's own steps, and those at the other ends of its edges."""
    own = {step.step: step.kind for step in report.steps}
    ends: list[StepId | None] = []
    needs: dict[StepId, dict[StepId, None]] = {}
    for edge in report.edges:
        source, target, need = edge_ends(edge.edge)
        ends += source, target, need
        if need is not None:
            needs.setdefault(target, {})[need] = None
    others = {*ends, *report.origin.contributors, *(skip.step for skip in report.origin.skipped)}
    for step in {*own, *others}:
        kind = own[step] if step in own else operation_of(step or StepId(""))
        if step is not None and kind is not None:
            yield ReportedStep(step, site_of(step), kind, tuple(needs.get(step, ())))


def _place(step: ReportedStep) -> tuple[int, int, bool, StepId]:
    """A sort key: topologies number inputs before outputs; a merge follows its train steps."""
    number = step.id.partition(".")[2].partition("@")[0]
    place = int(number) if number.isdigit() and len(number) < 10 else 0
    return _ORDER.get(step.kind, 0), place, step.kind == MERGE, step.id
