"""Checks before a run: the connections from here to each site, and each site's own checks."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from fedelmy_launcher.control.sites import Refusal, Sites
from fedelmy_node.domain.errors import error_from_code
from fedelmy_node.domain.names import PeerAddress, SiteName, StepId, site_of
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.plan_steps import in_order
from fedelmy_node.domain.reports import Finding, NodeDescription, PrepareAnswer
from fedelmy_node.ops.doctor.peer_checks import Caller, compare_advertised, examine_peer

_CLOCK_SECONDS: Final = 30.0
_TRAINER_SECONDS: Final = 4.0
"""Starting a trainer process: importing torch and opening a small data set, at least."""
_HANDOVER_SECONDS: Final = 0.5
"""Per hand-over beside the transfer itself: offer, verification, journal."""
_HANDOVER_ROUND_TRIPS: Final = 4
_TRIAL_BATCHES: Final = 6
"""Batches that a site trains when it checks its device."""


@dataclass(kw_only=True, slots=True)
class Checked:
    """The results of all checks."""

    nodes: dict[SiteName, NodeDescription] = field(default_factory=dict)
    answers: dict[SiteName, PrepareAnswer] = field(default_factory=dict)
    """Of the sites that would take part."""
    refusals: list[Refusal] = field(default_factory=list)
    findings: dict[SiteName, tuple[Finding, ...]] = field(default_factory=dict)
    """First those about the connection from here, then the site's own."""
    skewed: list[SiteName] = field(default_factory=list)
    """Sites whose clocks differ from ours."""
    asking_seconds: float = _TRAINER_SECONDS
    """How long all sites together took to answer."""
    loading_seconds: dict[SiteName, float] = field(default_factory=dict)
    """How long each site took to start a trainer and load its data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """The expected duration of a run along the longest path through its plan."""

    training_seconds: float
    transfer_seconds: float
    waiting_seconds: float
    """Asking the sites, starting trainers, loading data."""
    unknown: tuple[SiteName, ...]
    """Sites that report no training time; it is not counted."""

    @property
    def seconds(self) -> float:
        return self.training_seconds + self.transfer_seconds + self.waiting_seconds


def check_sites(sites: Sites, plan: Plan, *, quick: bool, doing: Callable[[str], None]) -> Checked:
    """Run all checks; with `quick`, only ask whether every site would take part."""
    checked = Checked()
    if not quick:
        doing("checking the connection to every site")
        checked.findings = _connections(sites)
    asked = time.time()
    checked.nodes, checked.refusals = sites.describe()
    # Compare clocks now: the checks that follow take longer than clocks may differ.
    earliest, latest = asked - _CLOCK_SECONDS, time.time() + _CLOCK_SECONDS
    checked.skewed = [
        site for site, node in checked.nodes.items() if not earliest <= node.clock <= latest
    ]
    if checked.refusals and quick:
        return checked
    if not quick:
        _compare_advertised(sites, checked)
    doing("asking every site" + ("" if quick else " to check itself, its data and its neighbours"))
    seconds: dict[SiteName, float] = {}
    began = time.monotonic()
    answers, refusals = sites.prepare(
        plan,
        check_only=True,
        examine=not quick,
        sites=list(checked.nodes),
        answered=lambda site, _, took: seconds.update({site: took}),
    )
    checked.asking_seconds = time.monotonic() - began
    for site, answer in answers.items():
        found = tuple(finding for finding in answer.findings if finding.subject != "plan")
        if found:
            checked.findings[site] = checked.findings.get(site, ()) + found
        if answer.state is None:
            refusals.append(_refusal(site, answer))
        else:
            checked.answers[site] = answer
    checked.refusals += refusals
    if seconds:
        checked.loading_seconds = _loading(sites, seconds, checked.findings)
    return checked


def _refusal(site: SiteName, answer: PrepareAnswer) -> Refusal:
    for finding in answer.findings:
        if finding.subject == "plan" and finding.verdict == "failure":
            text = f"{site}: {finding.message}"
            return Refusal(site, error_from_code(finding.code, text, finding.fix))
    text = f"{site} would refuse, but does not say why"
    return Refusal(site, error_from_code("E-RUN-REFUSED", text))


def _loading(
    sites: Sites, seconds: Mapping[SiteName, float], findings: Mapping[SiteName, Sequence[Finding]]
) -> dict[SiteName, float]:
    """How long a trainer start takes at each site, from how long the site took to answer."""
    hosts = {site: sites.addresses[site].rpartition(":")[0] for site in seconds}
    sharing = Counter(hosts.values())
    loading = {}
    for site, took in seconds.items():
        per_batch = _fact(findings.get(site, ()), "device", "trial", "seconds_per_batch") or 0.0
        # Sites of one machine answered at the same time and shared its cores; in a run they mostly
        # start one after the other.
        alone = (took - _TRIAL_BATCHES * per_batch) / sharing[hosts[site]]
        loading[site] = max(_TRAINER_SECONDS, alone)
    return loading


def _connections(sites: Sites) -> dict[SiteName, tuple[Finding, ...]]:
    """Check the connections from here to every site, in parallel."""
    me = _caller(sites)

    def one(site: SiteName) -> tuple[Finding, ...]:
        found = examine_peer(PeerAddress(site, sites.addresses[site]), me)
        return tuple(replace(finding, subject="from here") for finding in found)

    return _in_parallel(list(sites.addresses), one)


def _compare_advertised(sites: Sites, checked: Checked) -> None:
    """Compare the addresses that sites advertise with those of the federation file."""
    me = _caller(sites)
    places = {site: node.advertise for site, node in checked.nodes.items() if node.advertise}

    def one(site: SiteName) -> tuple[Finding, ...]:
        return tuple(compare_advertised(places[site], sites.addresses[site], site, me))

    for site, found in _in_parallel(list(places), one).items():
        checked.findings[site] = checked.findings.get(site, ()) + found


def _caller(sites: Sites) -> Caller:
    name = str(sites.identity.subject) if sites.identity else "operator/operator"
    return Caller(name=name, identity=sites.identity, insecure=sites.identity is None)


def _in_parallel(
    names: Sequence[SiteName], one: Callable[[SiteName], tuple[Finding, ...]]
) -> dict[SiteName, tuple[Finding, ...]]:
    pool = ThreadPoolExecutor(max_workers=min(32, max(1, len(names))), thread_name_prefix="check")
    try:
        return dict(zip(names, pool.map(one, names), strict=True))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _Path(NamedTuple):
    """Seconds along one path through the plan."""

    training: float = 0.0
    transfer: float = 0.0
    loading: float = 0.0


def estimate(
    plan: Plan,
    findings: Mapping[SiteName, Sequence[Finding]],
    bundle_bytes: int,
    *,
    loading_seconds: Mapping[SiteName, float] | None = None,
    asking_seconds: float = _TRAINER_SECONDS,
) -> Estimate:
    """Add up the longest path: the sites' own training times, hand-overs at the sender's speed,
    and a trainer start for every step that computes.

    A step's output that goes to several sites is sent to each in turn: they share one line. A
    trainer start counts in full: where it overlaps with the step before, it often competes for the
    same cores.
    """
    visits = Counter(step.site for step in plan.steps if plan.traits(step.id).trains)
    sites = [site.site for site in plan.sites if site.site in visits]
    trains = {site: _fact(findings.get(site, ()), "device", "time", "seconds") for site in sites}
    sending: dict[StepId, float] = defaultdict(float)
    for edge in plan.edges:
        found, peer = findings.get(edge.sender, ()), f"peer {edge.receiver}"
        rate = _fact(found, peer, "speed", "bytes_per_second") or 0.0
        round_trip = _fact(found, peer, "speed", "round_trip_seconds") or 0.0
        sending[edge.source] += _HANDOVER_SECONDS + _HANDOVER_ROUND_TRIPS * round_trip
        sending[edge.source] += bundle_bytes / rate if rate >= 1 else 0.0
    longest: dict[StepId, _Path] = {}
    for step in in_order(plan.steps):
        paths = (
            longest[need]._replace(transfer=longest[need].transfer + sending[need])
            if site_of(need) != step.site
            else longest[need]
            for need in step.needs
        )
        training, transfer, loading = max(paths, key=sum, default=_Path())
        if plan.traits(step.id).trains:
            training += (trains[step.site] or 0.0) / visits[step.site]
        if not plan.traits(step.id).passes_on:
            loading += (loading_seconds or {}).get(step.site, _TRAINER_SECONDS)
        longest[step.id] = _Path(training, transfer, loading)
    training, transfer, loading = max(longest.values(), key=sum)
    return Estimate(
        training_seconds=training,
        transfer_seconds=transfer,
        waiting_seconds=asking_seconds + loading,
        unknown=tuple(site for site in sites if trains[site] is None),
    )


def _fact(findings: Sequence[Finding], subject: str, check: str, key: str) -> float | None:
    """A number in a finding; it comes from another site, so it may be anything."""
    for finding in findings:
        if (finding.subject, finding.check) == (subject, check):
            value = finding.facts.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
                return float(value)
    return None
