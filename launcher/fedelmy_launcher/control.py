"""Run control: ask every site first, start where nothing is needed.

Nothing here has to survive: a launcher that died is simply run again on the same run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, TypeVar

from fedelmy_launcher.federation_file import trust_rules
from fedelmy_launcher.plans import new_plan_id, signed_cancel, signed_slices
from fedelmy_node import CONTRACT
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.federation import Absence, Federation
from fedelmy_node.domain.names import Address, RunId, SiteName, site_of
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.reports import NodeDescription, PrepareAnswer, RunReport
from fedelmy_node.errors import FedelmyError, PeerError, RunError
from fedelmy_node.identity.certificates import expiry_warning
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.clients import OperatorClient
from fedelmy_node.rpc.dial import open_channel

__all__ = [
    "Sites",
    "Refusal",
    "refused",
    "withdraw",
    "prepare_run",
    "start_run",
    "expiry_warnings",
    "ASK_AGAIN",
    "OTHER_RUNS",
]

ASK_AGAIN: Final = "Correct what the sites named, then ask again."
OTHER_RUNS: Final = "`fedelmy-launch status` shows the newest run; `fedelmy-node runs list` at a site shows all."
"""What to do if nobody tells how a run is doing."""
T = TypeVar("T")
_AT_ONCE: Final = 32
_LOOKING_PER_HOST: Final = 4
"""Each loads torch and its data to answer: a hundred sites on one machine would take all of its memory."""
_FAR_SECONDS: Final = 2.5e11
"""Nearly the year 9999: later dates have no name."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A site that said no, or nothing."""

    site: SiteName
    error: FedelmyError


class Sites:
    """The nodes of a federation as the operator reaches them; asks all of them at once."""

    def __init__(self, federation: Federation | None, identity: Identity | None) -> None:
        """The sites of federation.toml; without one, none yet: they join `addresses` as they are found."""
        members = federation.members if federation else ()
        self.addresses: dict[SiteName, Address] = {member.name: member.address for member in members}
        self.absences: Mapping[SiteName, Absence] = (
            {member.name: federation.absence_of(member) for member in members} if federation else {}
        )
        """What the plan says about sites out of reach, as far as it is known here."""
        self.identity = identity.trusting(trust_rules(members)) if identity and members else identity
        self._lock = threading.Lock()
        self._clients: dict[SiteName, OperatorClient] = {}

    def __enter__(self) -> Sites:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def again(self) -> Sites:
        """The same sites with connections of their own: dropping one of these breaks nothing there."""
        sites = Sites(None, self.identity)
        sites.addresses, sites.absences = dict(self.addresses), self.absences
        return sites

    def close(self) -> None:
        """End every connection, and with it every call that is under way."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def client(self, site: SiteName) -> OperatorClient:
        """A client of a site; its certificate is checked when the connection is made."""
        with self._lock:
            if site in self._clients:
                return self._clients[site]
        if site not in self.addresses:  # others have spoken of it, and none of its neighbours has answered yet
            hint = "Name the federation file, or ask at a neighbour of that site with --at."
            raise PeerError("E-PEER-UNREACHABLE", f"no site that answers knows the address of {site}", hint=hint)
        channel = open_channel(
            self.addresses[site],
            self.identity,
            expect_role="site",
            expect_site=site,
            insecure_name="operator/operator",
        )
        made = OperatorClient(channel, site)
        with self._lock:
            client = self._clients.setdefault(site, made)
        if client is not made:
            made.close()
        return client

    def drop(self, site: SiteName) -> None:
        """Forget a connection that broke."""
        with self._lock:
            client = self._clients.pop(site, None)
        if client is not None:
            client.close()

    def ask(
        self,
        question: Callable[[SiteName, OperatorClient], T],
        sites: Iterable[SiteName] | None = None,
        *,
        per_host: int = _AT_ONCE,
    ) -> tuple[dict[SiteName, T], list[Refusal]]:
        """What every site answers, and who refused or could not be reached; so many at once on one machine."""
        asked = list(self.addresses if sites is None else sites)
        hosts = {site: self.addresses.get(site, "").rpartition(":")[0] for site in asked}
        room = {host: threading.Semaphore(per_host) for host in hosts.values()}

        def one(site: SiteName) -> T | Refusal:
            with room[hosts[site]]:
                try:
                    return question(site, self.client(site))
                except FedelmyError as error:
                    return Refusal(site, error)

        pool = ThreadPoolExecutor(max_workers=min(_AT_ONCE, max(1, len(asked))), thread_name_prefix="ask")
        try:
            answers = dict(zip(asked, pool.map(one, asked), strict=True))
        except BaseException:
            self.close()  # Ctrl-C must not wait for a site that looks at its data: break the calls off
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        refusals = [answer for answer in answers.values() if isinstance(answer, Refusal)]
        return {site: a for site, a in answers.items() if not isinstance(a, Refusal)}, refusals

    def bring_lists(self) -> dict[SiteName, int]:
        """Hand our revocation lists to every site that answers; returns the numbers in force there.

        It comes before anything else, so that nobody whom the CA has revoked takes part in what follows. Who cannot
        be reached is named by whatever is asked next.
        """
        lists = self.identity.trust.lists_pem if self.identity else b""
        return self.ask(lambda _, client: client.revoke(lists))[0] if lists else {}

    def describe(
        self, sites: Iterable[SiteName] | None = None
    ) -> tuple[dict[SiteName, NodeDescription], list[Refusal]]:
        def question(site: SiteName, client: OperatorClient) -> NodeDescription:
            node = client.describe()
            if CONTRACT not in node.contracts:
                raise PeerError(
                    "E-PEER-CONTRACT",
                    f"{site} speaks {', '.join(node.contracts) or 'no contract'} (version {node.version}),"
                    f" this launcher speaks {CONTRACT}",
                )
            return node

        return self.ask(question, sites)

    def reports(
        self, run: RunId, sites: Iterable[SiteName] | None = None
    ) -> tuple[dict[SiteName, RunReport], list[Refusal]]:
        def question(site: SiteName, client: OperatorClient) -> RunReport:
            report = client.report(run)
            own = all(site_of(step.step) == site for step in report.steps)
            if (report.run, report.site) != (run, site) or not own:
                raise PeerError("E-PEER-PROTOCOL", f"{site} reports what is not its own")
            return report

        return self.ask(question, sites)

    def cancel(
        self, run: RunId, reason: str, reports: Mapping[SiteName, RunReport]
    ) -> tuple[dict[SiteName, RunState], list[Refusal]]:
        """End the plan that each site reports; a site that reports none is told what the first one is."""
        plans = {site: report.plan_id for site, report in reports.items()}
        words = {plan: signed_cancel(run, plan, reason, self.identity) for plan in {*plans.values()}}
        first = next(iter(plans.values()), "")
        words.setdefault(first, signed_cancel(run, first, reason, self.identity))
        return self.ask(lambda site, client: client.cancel(words[plans.get(site, first)]))

    def prepare(
        self, plan: Plan, *, check_only: bool, examine: bool = False, sites: Iterable[SiteName] | None = None
    ) -> tuple[dict[SiteName, PrepareAnswer], list[Refusal]]:
        """Ask every site, or these, whether it would take its part; with `check_only` it then forgets the question.

        With `examine` it looks at all that it can, and a refusal is an answer without a state.
        """
        slices = signed_slices(plan, self.identity)

        def question(site: SiteName, client: OperatorClient) -> PrepareAnswer:
            return client.prepare(slices[site], check_only=check_only, examine=examine)

        return self.ask(question, sites=list(slices if sites is None else sites), per_host=_LOOKING_PER_HOST)


def prepare_run(sites: Sites, plan: Plan) -> dict[SiteName, RunReport]:
    """Ask every site; one refusal, and nothing starts. How the run then stands at each: prepared, pending or begun."""
    sites.bring_lists()
    nodes, unreachable = sites.describe()
    if unreachable:
        problem = refused(unreachable)
        if any(known.run == plan.run for node in nodes.values() for known in node.runs):
            hint = (
                f"{problem.hint} The run exists: `fedelmy-launch run --attach {plan.run}` follows it without this site."
            )
            raise type(problem)(problem.code, problem.message, hint=hint)
        raise _not_started(problem)
    known, unknown = sites.reports(plan.run)
    plan = replace(plan, plan_id=plan.plan_id or _plan_id(known.values()))
    is_new = all(report.state in (RunState.CANCELLED, RunState.EXPIRED) for report in known.values())
    is_new &= all(refusal.error.code == "E-RUN-UNKNOWN" for refusal in unknown)
    accepted, refusals = sites.prepare(plan, check_only=False, sites=nodes)
    if refusals:
        # A run that exists is never ended by an attempt to follow it, unless a person has refused it.
        if is_new or any(refusal.error.code == "E-CONSENT-REFUSED" for refusal in refusals):
            withdraw(sites, plan.run, plan.plan_id, "another site refused", accepted)
        raise _not_started(refused(refusals)) if is_new else refused(refusals)
    reports, unheard = sites.reports(plan.run)
    if unheard:
        raise refused(unheard)
    return reports


def start_run(sites: Sites, run: RunId, reports: Mapping[SiteName, RunReport]) -> None:
    """Start a run that is prepared everywhere, wherever it has not begun."""
    waiting = [site for site, report in reports.items() if report.state not in (RunState.RUNNING, RunState.DONE)]
    _, problems = sites.ask(lambda _, client: client.start(run), sites=waiting)
    if problems:
        raise refused(problems)


def withdraw(sites: Sites, run: RunId, plan_id: str, reason: str, names: Iterable[SiteName]) -> None:
    """End this plan of a run at these sites, wherever nothing of it has begun."""
    withdrawal = signed_cancel(run, plan_id, reason, sites.identity, withdraw=True)
    sites.ask(lambda _, client: client.cancel(withdrawal), sites=names)


def expiry_warnings(identity: Identity | None, nodes: Iterable[NodeDescription]) -> list[str]:
    """Certificates that end soon: the operator's own, and those of the sites."""
    texts = [*(identity.warnings() if identity else ())]
    for node in nodes:
        if 0 < node.certificate_expires < _FAR_SECONDS:
            date = datetime.fromtimestamp(node.certificate_expires, UTC)
            texts += [text for text in (expiry_warning(f"site/{node.site}", date),) if text]
    return texts


def _plan_id(reports: Iterable[RunReport]) -> str:
    """Of the plan that the run has where it is alive or done, or that a person refused; else a new one."""
    again = (RunState.CANCELLED, RunState.EXPIRED)
    kept = (r.plan_id for r in reports if r.state not in again or r.code == "E-CONSENT-REFUSED")
    found = next(kept, None)
    return new_plan_id() if found is None else found


def refused(refusals: list[Refusal], hint: str | None = None) -> FedelmyError:
    """One error for all: a single refusal as it is, several under one code, each named; `hint` is then what to do."""
    if len(refusals) == 1:
        only = refusals[0]
        text = only.error.message if only.site in only.error.message else f"{only.site}: {only.error.message}"
        return type(only.error)(only.error.code, text, hint=only.error.hint)
    lines = [f"{refusal.site}: {refusal.error}\n    {refusal.error.hint}" for refusal in refusals]
    summary = f"{len(refusals)} sites refused or did not answer:"
    return RunError("E-RUN-REFUSED", "\n  ".join([summary, *lines]), hint=hint)


def _not_started(problem: FedelmyError) -> FedelmyError:
    """The same, saying that nothing was started; several refusals under one code say so already."""
    if problem.code == "E-RUN-REFUSED":
        return problem
    return type(problem)(problem.code, problem.message, hint=f"{problem.hint} Nothing was started.")
