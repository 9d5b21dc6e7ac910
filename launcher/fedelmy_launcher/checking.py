"""Everything that can be known before a run: the operator's way to each site, and what each site finds out itself."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from fedelmy_launcher.control import Refusal, Sites
from fedelmy_node.daemon.examination.advertised import compare_advertised
from fedelmy_node.daemon.examination.peers import Caller, examine_peer
from fedelmy_node.domain.findings import Finding
from fedelmy_node.domain.names import PeerAddress, SiteName, StepId, site_of
from fedelmy_node.domain.plan import Plan, StepKind, in_order
from fedelmy_node.domain.reports import NodeDescription, PrepareAnswer
from fedelmy_node.errors import error_from_code

__all__ = ["Checked", "Estimate", "check_sites", "estimate"]

_CLOCK_SECONDS: Final = 30.0


@dataclass(kw_only=True, slots=True)
class Checked:
    """What is known of all sites."""

    nodes: dict[SiteName, NodeDescription] = field(default_factory=dict)
    answers: dict[SiteName, PrepareAnswer] = field(default_factory=dict)
    """Of those that would take part, or would not say no."""
    refusals: list[Refusal] = field(default_factory=list)
    findings: dict[SiteName, tuple[Finding, ...]] = field(default_factory=dict)
    """First those from here to the site, then the site's own."""
    skewed: list[SiteName] = field(default_factory=list)
    """Whose clocks differ from ours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """How long a run would take: its sites one after the other, or at once, as the topology says."""

    training_seconds: float
    transfer_seconds: float
    unknown: tuple[SiteName, ...]
    """Sites that say nothing about it; they are not counted."""

    @property
    def seconds(self) -> float:
        return self.training_seconds + self.transfer_seconds


def check_sites(sites: Sites, plan: Plan, *, quick: bool, doing: Callable[[str], None]) -> Checked:
    """Ask all that can be asked; with `quick`, only whether every site would take part."""
    checked = Checked()
    if not quick:
        doing("looking at the way to every site")
        checked.findings = _ways(sites)
    asked = time.time()
    checked.nodes, checked.refusals = sites.describe()
    # Compared now: what follows takes longer than clocks may differ.
    earliest, latest = asked - _CLOCK_SECONDS, time.time() + _CLOCK_SECONDS
    checked.skewed = [site for site, node in checked.nodes.items() if not earliest <= node.clock <= latest]
    if checked.refusals and quick:
        return checked
    if not quick:
        _compare_places(sites, checked)
    doing("asking every site" + ("" if quick else " to examine itself, its data and its neighbours"))
    answers, refusals = sites.prepare(plan, check_only=True, examine=not quick, sites=list(checked.nodes))
    for site, answer in answers.items():
        told = tuple(finding for finding in answer.findings if finding.subject != "plan")
        if told:
            checked.findings[site] = checked.findings.get(site, ()) + told
        if answer.state is None:
            refusals.append(_refusal(site, answer))
        else:
            checked.answers[site] = answer
    checked.refusals += refusals
    return checked


def _refusal(site: SiteName, answer: PrepareAnswer) -> Refusal:
    """Of a site that examined itself: why it would not take part."""
    for finding in answer.findings:
        if finding.subject == "plan" and finding.verdict == "failure":
            return Refusal(site, error_from_code(finding.code, f"{site}: {finding.message}", finding.fix))
    return Refusal(site, error_from_code("E-RUN-REFUSED", f"{site} would refuse, and does not say why"))


def _ways(sites: Sites) -> dict[SiteName, tuple[Finding, ...]]:
    """From here to every site, all at once."""
    me = _caller(sites)

    def one(site: SiteName) -> tuple[Finding, ...]:
        found = examine_peer(PeerAddress(site, sites.addresses[site]), me)
        return tuple(replace(finding, subject="from here") for finding in found)

    return _of_all(list(sites.addresses), one)


def _compare_places(sites: Sites, checked: Checked) -> None:
    """Where sites say that they are reached, against where they are looked for."""
    me, places = _caller(sites), {site: node.advertise for site, node in checked.nodes.items() if node.advertise}

    def one(site: SiteName) -> tuple[Finding, ...]:
        return tuple(compare_advertised(places[site], sites.addresses[site], site, me))

    for site, found in _of_all(list(places), one).items():
        checked.findings[site] = checked.findings.get(site, ()) + found


def _caller(sites: Sites) -> Caller:
    name = str(sites.identity.subject) if sites.identity else "operator/operator"
    return Caller(name=name, identity=sites.identity, insecure=sites.identity is None)


def _of_all(
    names: Sequence[SiteName], one: Callable[[SiteName], tuple[Finding, ...]]
) -> dict[SiteName, tuple[Finding, ...]]:
    pool = ThreadPoolExecutor(max_workers=min(32, max(1, len(names))), thread_name_prefix="way")
    try:
        return dict(zip(names, pool.map(one, names), strict=True))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def estimate(plan: Plan, findings: Mapping[SiteName, Sequence[Finding]], bundle_bytes: int) -> Estimate:
    """Along the longest way through the plan: the sites' own estimates, and every bundle at its sender's speed.

    A step's output that goes to several sites takes its time for each: they share one line.
    """
    visits = Counter(step.site for step in plan.steps if step.kind == StepKind.TRAIN)
    sites = [site.site for site in plan.sites if site.site in visits]
    trains = {site: _fact(findings.get(site, ()), "device", "time", "seconds") for site in sites}
    sending: dict[StepId, float] = defaultdict(float)
    for edge in plan.edges:
        rate = _fact(findings.get(edge.sender, ()), f"peer {edge.receiver}", "speed", "bytes_per_second")
        sending[edge.source] += bundle_bytes / rate if rate and rate >= 1 else 0.0
    longest: dict[StepId, tuple[float, float]] = {}
    for step in in_order(plan.steps):
        training, transfers = max(
            (
                (longest[need][0], longest[need][1] + (sending[need] if site_of(need) != step.site else 0.0))
                for need in step.needs
            ),
            key=sum,
            default=(0.0, 0.0),
        )
        if step.kind == StepKind.TRAIN:
            training += (trains[step.site] or 0.0) / visits[step.site]
        longest[step.id] = training, transfers
    training, transfers = max(longest.values(), key=sum)
    unknown = tuple(site for site in sites if trains[site] is None)
    return Estimate(training_seconds=training, transfer_seconds=transfers, unknown=unknown)


def _fact(findings: Sequence[Finding], subject: str, check: str, key: str) -> float | None:
    """A number of a finding; another site's word, so it may be anything."""
    for finding in findings:
        if (finding.subject, finding.check) == (subject, check):
            value = finding.facts.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
                return float(value)
    return None
