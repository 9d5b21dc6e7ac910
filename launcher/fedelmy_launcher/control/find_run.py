"""Find a run, by name or the newest one: ask any of its sites, then all, and outline it.

Every site knows the addresses of its neighbours, so one address is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from fedelmy_launcher.control.contributors import Outline, knows_all_sites
from fedelmy_launcher.control.sites import ASK_AGAIN, Refusal, Sites, refused
from fedelmy_node.domain.errors import RunError
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import Address, RunId, SiteName, StepId, edge_ends, run_id, site_of
from fedelmy_node.domain.reports import RunReport, RunSummary
from fedelmy_node.domain.step_traits import DELIVER, EVALUATE, Traits, operation_of, traits_of
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.channel import open_channel
from fedelmy_node.rpc.clients import OperatorClient

_NO_RUN: Final = (
    "Start one with `fedelmy-launch run`. A new run appears as soon as one site has accepted it."
)
_MAX_SITES: Final = 10_000
"""The limit of a federation: invented neighbours must not keep the search going forever."""
_LAST: Final = {DELIVER: 1, EVALUATE: 2}


@dataclass(frozen=True, slots=True)
class ReportedStep:
    """A step as reported by sites."""

    id: StepId
    site: SiteName
    kind: str
    needs: tuple[StepId, ...] = ()
    """Those that its site or a neighbour reports."""


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """The known part of a run's plan; for a silent site, what its neighbours report."""

    run: RunId
    federation: str
    steps: tuple[ReportedStep, ...]
    """In order of training, then of delivery."""
    operations: Mapping[str, Traits] = field(default_factory=dict)
    """Those that the plan declares; empty also if the sites' software is older."""

    def traits(self, step: StepId) -> Traits:
        return traits_of(step, self.operations)


def find_run(sites: Sites, name: str | None, federation: str | None) -> RunId:
    """The named run, or the newest; if that was cancelled, the newest that is still active."""
    if name is not None:
        return run_id(name)
    newest, going = newest_run(sites, federation)
    return (going or newest).run


def newest_run(sites: Sites, federation: str | None) -> tuple[RunSummary, RunSummary | None]:
    """The run that changed last; and, if it was cancelled, the newest one still active."""
    nodes, unreachable = sites.describe()
    runs = [run for node in nodes.values() for run in node.runs]
    known = [run for run in runs if federation in (None, run.federation)]
    if not known:
        if unreachable:
            raise refused(unreachable, ASK_AGAIN)
        of = f" of {federation}" if federation else ""
        raise RunError("E-RUN-UNKNOWN", f"no run{of} found at any site", hint=_NO_RUN)
    newest = max(known, key=lambda run: run.changed_at)
    if newest.state != RunState.CANCELLED:
        return newest, None
    ended = {run.run for run in known if run.state in (RunState.CANCELLED, RunState.ABORTED)}
    going = [run for run in known if run.run not in ended and not run.state.is_final]
    return newest, max(going, key=lambda run: run.changed_at, default=None)


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
    run: RunId, reports: Mapping[SiteName, RunReport], known: Outline | None = None
) -> ReportedRun:
    """The outline of a run from at least one report; `known`: what was found before."""
    federation = next((report.federation for report in reports.values() if report.federation), "")
    found = known.steps if known else ()
    steps = {step.id: ReportedStep(step.id, step.site, step.kind, step.needs) for step in found}
    operations = dict(known.operations) if known else {}
    for report in reports.values():
        operations = {**report.operations, **operations}
        for step in _steps(report):
            before = steps.get(step.id, step)
            # Both ends of an edge report it; a site knows no steps beyond its neighbours.
            steps[step.id] = replace(step, needs=tuple(dict.fromkeys([*before.needs, *step.needs])))
    if reports and knows_all_sites(reports):  # other reported steps do not exist
        steps = {step.id: step for step in steps.values() if step.site in reports}
    for report in reports.values():
        own = {step.step: step.needs for step in report.steps if step.needs}
        steps |= {step: replace(steps[step], needs=needs) for step, needs in own.items()}
    return ReportedRun(run, federation, tuple(_in_order(steps.values(), operations)), operations)


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


def _in_order(
    steps: Iterable[ReportedStep], operations: Mapping[str, Traits]
) -> Iterator[ReportedStep]:
    """Sort by the numbers of the steps, and put known inputs before outputs, whatever the numbers.

    A site may report needs that form a cycle: each step comes once nevertheless.
    """

    def place(step: ReportedStep) -> tuple[int, int, bool, StepId]:
        number = step.id.partition(".")[2].partition("@")[0]
        after = _LAST.get(step.kind, 0)
        return after, int(number), not traits_of(step.id, operations).trains, step.id

    ahead = {step.id: step for step in sorted(steps, key=place)}
    for step in list(ahead.values()):
        pending = [step] if ahead.pop(step.id, None) else []
        while pending:
            need = next((need for need in pending[-1].needs if need in ahead), None)
            if need is None:
                yield pending.pop()
            else:
                pending.append(ahead.pop(need))
