"""Finding a run by asking: from any of its sites to all of them, and from their reports to its outline.

Nobody but the sites has to know a run. Each knows its neighbours and where they are, so one address is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from fedelmy_launcher.contradictions import knows_all_sites
from fedelmy_launcher.control import Refusal, Sites
from fedelmy_launcher.outcome import OutlineStep
from fedelmy_node.domain.names import Address, RunId, SiteName, StepId, edge_ends, site_of
from fedelmy_node.domain.plan import StepKind
from fedelmy_node.domain.reports import RunReport
from fedelmy_node.domain.steps import kind_of
from fedelmy_node.errors import RunError
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.clients import OperatorClient
from fedelmy_node.rpc.dial import open_channel

__all__ = ["ReportedStep", "ReportedRun", "discover", "reported_run", "site_at"]

_MAX_SITES: Final = 10_000
"""As many as a federation may have: a site that makes others up must not keep the search going."""
_ORDER: Final = {StepKind.TRAIN: 0, StepKind.MERGE: 0, StepKind.DELIVER: 1, StepKind.EVALUATE: 2}


@dataclass(frozen=True, slots=True)
class ReportedStep:
    """A step as the sites speak of it."""

    id: StepId
    site: SiteName
    kind: StepKind
    needs: tuple[StepId, ...] = ()
    """Those that come from other sites, and whatever else a neighbour knows of."""


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """As much of a run's plan as its sites tell; of a site that is silent, what its neighbours know."""

    run: RunId
    federation: str
    steps: tuple[ReportedStep, ...]
    """In the order of training, then of delivery."""


def site_at(address: Address, identity: Identity | None) -> SiteName:
    """Who answers at an address: any site of the operator's federation will do."""
    channel = open_channel(address, identity, expect_role="site", insecure_name="operator/operator")
    client = OperatorClient(channel, address)
    try:
        return client.describe().site
    finally:
        client.close()


def discover(sites: Sites, run: RunId) -> tuple[dict[SiteName, RunReport], list[Refusal]]:
    """What every site reports of a run, whoever was known before; neighbours that are new join `sites`.

    A site's own place in `sites` goes before the address that its neighbours were told.
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
            raise RunError("E-RUN-PLAN", f"the sites of run {run} name more than {_MAX_SITES} others")
        sites.addresses.update({site: near[site] for site in asking})
    return reports, refusals


def reported_run(run: RunId, reports: Mapping[SiteName, RunReport], known: Iterable[OutlineStep] = ()) -> ReportedRun:
    """The outline of a run that at least one site reports; `known`: steps that were found before."""
    federation = next((report.federation for report in reports.values() if report.federation), "")
    steps = {step.id: ReportedStep(step.id, step.site, step.kind, step.needs) for step in known}
    for report in reports.values():
        for step in _steps(report):
            before = steps.get(step.id, step)
            # Both ends of an edge tell it, and of the steps beyond its neighbours a site knows nothing.
            steps[step.id] = replace(step, needs=tuple(dict.fromkeys([*before.needs, *step.needs])))
    if reports and knows_all_sites(reports):  # whatever else was heard of does not exist
        steps = {step.id: step for step in steps.values() if step.site in reports}
    return ReportedRun(run=run, federation=federation, steps=tuple(sorted(steps.values(), key=_place)))


def _steps(report: RunReport) -> Iterator[ReportedStep]:
    """A site's own steps, and those at the other ends of its edges."""
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
        kind = own[step] if step in own else kind_of(step or StepId(""))
        if step is not None and kind is not None:
            yield ReportedStep(step, site_of(step), kind, tuple(needs.get(step, ())))


def _place(step: ReportedStep) -> tuple[int, int, bool, StepId]:
    """Topologies number the steps, inputs before outputs; a merge comes behind the train steps of its number."""
    number = step.id.partition(".")[2].partition("@")[0]
    place = int(number) if number.isdigit() and len(number) < 10 else 0
    return _ORDER[step.kind], place, step.kind == StepKind.MERGE, step.id
