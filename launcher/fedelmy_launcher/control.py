"""Run control: ask every site first, start where nothing is needed.

Nothing here has to survive: a launcher that died is simply run again on the same run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from fedelmy_launcher.plans import signed_cancel, signed_slices
from fedelmy_node import CONTRACT
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.federation import Absence, Federation
from fedelmy_node.domain.names import Address, RunId, SiteName, site_of
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.reports import NodeDescription, RunReport
from fedelmy_node.errors import FedelmyError, PeerError, RunError
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.clients import OperatorClient
from fedelmy_node.rpc.dial import open_channel

__all__ = ["Sites", "Refusal", "refused", "start_run"]

T = TypeVar("T")


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
        self.identity = identity
        self._lock = threading.Lock()
        self._clients: dict[SiteName, OperatorClient] = {}

    def __enter__(self) -> Sites:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

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
        self, question: Callable[[SiteName, OperatorClient], T], sites: Iterable[SiteName] | None = None
    ) -> tuple[dict[SiteName, T], list[Refusal]]:
        """What every site answers, and who refused or could not be reached."""

        def one(site: SiteName) -> T | Refusal:
            try:
                return question(site, self.client(site))
            except FedelmyError as error:
                return Refusal(site, error)

        asked = list(self.addresses if sites is None else sites)
        pool = ThreadPoolExecutor(max_workers=min(32, max(1, len(asked))), thread_name_prefix="ask")
        try:
            answers = dict(zip(asked, pool.map(one, asked), strict=True))
        except BaseException:
            self.close()  # Ctrl-C must not wait for a site that looks at its data: break the calls off
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        refusals = [answer for answer in answers.values() if isinstance(answer, Refusal)]
        return {site: a for site, a in answers.items() if not isinstance(a, Refusal)}, refusals

    def describe(self) -> tuple[dict[SiteName, NodeDescription], list[Refusal]]:
        def question(site: SiteName, client: OperatorClient) -> NodeDescription:
            node = client.describe()
            if CONTRACT not in node.contracts:
                raise PeerError(
                    "E-PEER-CONTRACT",
                    f"{site} speaks {', '.join(node.contracts) or 'no contract'} (version {node.version}),"
                    f" this launcher speaks {CONTRACT}",
                )
            return node

        return self.ask(question)

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

    def cancel(self, run: RunId, reason: str) -> tuple[dict[SiteName, RunState], list[Refusal]]:
        signed = signed_cancel(run, reason, self.identity)
        return self.ask(lambda _, client: client.cancel(signed))

    def prepare(self, plan: Plan, *, check_only: bool) -> tuple[dict[SiteName, Mapping[str, Any]], list[Refusal]]:
        """Ask every site whether it would take its part; with `check_only` it then forgets the question."""
        slices = signed_slices(plan, self.identity)
        return self.ask(lambda site, client: client.prepare(slices[site], check_only=check_only), sites=list(slices))


def start_run(sites: Sites, plan: Plan) -> dict[SiteName, Mapping[str, Any]]:
    """Prepare everywhere; if all agree, start the steps without inputs. One refusal, and nothing starts."""
    nodes, unreachable = sites.describe()
    if unreachable:
        problem = refused(unreachable)
        if any(known.run == plan.run for node in nodes.values() for known in node.runs):
            hint = (
                f"{problem.hint} The run exists: `fedelmy-launch run --attach {plan.run}` follows it without this site."
            )
            raise type(problem)(problem.code, problem.message, hint=hint)
        raise problem
    known, unknown = sites.reports(plan.run)
    is_new = all(report.state in (RunState.CANCELLED, RunState.EXPIRED) for report in known.values())
    is_new &= all(refusal.error.code == "E-RUN-UNKNOWN" for refusal in unknown)
    reports, refusals = sites.prepare(plan, check_only=False)
    if refusals:
        if is_new:  # a run that exists is never ended by an attempt to follow it
            withdrawal = signed_cancel(plan.run, "another site refused", sites.identity, withdraw=True)
            sites.ask(lambda _, client: client.cancel(withdrawal), sites=list(reports))
        raise refused(refusals)
    states, unheard = sites.reports(plan.run)
    begun = (RunState.RUNNING, RunState.DONE)
    waiting = [site for site, report in states.items() if report.state not in begun]
    _, problems = sites.ask(lambda _, client: client.start(plan.run), sites=waiting)
    if unheard or problems:
        raise refused(unheard or problems)
    return reports


def refused(refusals: list[Refusal]) -> FedelmyError:
    """One error for all: a single refusal as it is, several under one code, each named."""
    if len(refusals) == 1:
        only = refusals[0]
        text = only.error.message if only.site in only.error.message else f"{only.site}: {only.error.message}"
        return type(only.error)(only.error.code, text, hint=only.error.hint)
    lines = [f"{refusal.site}: {refusal.error}\n    {refusal.error.hint}" for refusal in refusals]
    return RunError("E-RUN-REFUSED", "\n  ".join([f"{len(refusals)} sites refused:", *lines]))
