"""The operator's connections to the sites of a federation, and what all of them can be asked."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

from fedelmy_launcher.plans.compiler import signed_cancel, signed_slices
from fedelmy_node import CONTRACT
from fedelmy_node.config.federation_file import trust_rules
from fedelmy_node.domain.errors import FedelmyError, PeerError, RunError
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.federation import Absence, Federation
from fedelmy_node.domain.names import Address, RunId, SiteName, site_of
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.reports import NodeDescription, PrepareAnswer, RunReport
from fedelmy_node.identity.certificates import expiry_warning
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.channel import open_channel
from fedelmy_node.rpc.clients import OperatorClient

ASK_AGAIN: Final = "Fix the problems that the sites named, then try again."
OTHER_RUNS: Final = (
    "`fedelmy-launch status` shows the newest run; `fedelmy-node runs list` at a site shows all."
)
T = TypeVar("T")
_CONCURRENCY: Final = 32
_PREPARES_PER_HOST: Final = 4
"""Each loads torch and its data: a hundred sites on one machine would use up its memory."""
_FAR_SECONDS: Final = 2.5e11
"""Nearly the year 9999: later dates cannot be formatted."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A site that refused or did not answer."""

    site: SiteName
    error: FedelmyError


Answered = Callable[[SiteName, PrepareAnswer | Refusal, float], None]
"""Called in a thread when a site has answered, with the seconds that it took."""


class Sites:
    """The operator's connections to the nodes of a federation; calls all of them in parallel."""

    def __init__(self, federation: Federation | None, identity: Identity | None) -> None:
        """The sites of federation.toml; without one, callers add to `addresses`."""
        members = federation.members if federation else ()
        self.addresses: dict[SiteName, Address] = {each.name: each.address for each in members}
        self.absences: Mapping[SiteName, Absence] = (
            {member.name: federation.absence_of(member) for member in members} if federation else {}
        )
        """The policies for unreachable sites, as far as known."""
        if identity and members:
            identity = identity.with_rules(trust_rules(members))
        self.identity = identity
        self._lock = threading.Lock()
        self._clients: dict[SiteName, OperatorClient] = {}

    def __enter__(self) -> Sites:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def again(self) -> Sites:
        """The same sites with separate connections, which can be dropped independently."""
        sites = Sites(None, self.identity)
        sites.addresses, sites.absences = dict(self.addresses), self.absences
        return sites

    def close(self) -> None:
        """Close every connection, and abort the calls in progress."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def client(self, site: SiteName) -> OperatorClient:
        """The client of a site; connecting checks the site's certificate."""
        with self._lock:
            if site in self._clients:
                return self._clients[site]
        if site not in self.addresses:  # other sites named it, but none of its neighbours answers
            hint = "Name the federation file, or a neighbour of that site with --at."
            message = f"no site that answers knows the address of {site}"
            raise PeerError("E-PEER-UNREACHABLE", message, hint=hint)
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
        """Close a broken connection."""
        with self._lock:
            client = self._clients.pop(site, None)
        if client is not None:
            client.close()

    def ask(
        self,
        question: Callable[[SiteName, OperatorClient], T],
        sites: Iterable[SiteName] | None = None,
        *,
        per_host: int = _CONCURRENCY,
        answered: Callable[[SiteName, T | Refusal, float], None] | None = None,
    ) -> tuple[dict[SiteName, T], list[Refusal]]:
        """Ask all sites, or these, in parallel; return the answers and the refusals.

        `answered` is called in a thread for every site, with the seconds that it took.
        """
        asked = list(self.addresses if sites is None else sites)
        hosts = {site: self.addresses.get(site, "").rpartition(":")[0] for site in asked}
        limits = {host: threading.Semaphore(per_host) for host in hosts.values()}

        def one(site: SiteName) -> T | Refusal:
            with limits[hosts[site]]:
                began = time.monotonic()
                try:
                    answer: T | Refusal = question(site, self.client(site))
                except FedelmyError as error:
                    answer = Refusal(site, error)
                if answered is not None:
                    answered(site, answer, time.monotonic() - began)
                return answer

        workers = min(_CONCURRENCY, max(1, len(asked)))
        pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="ask")
        try:
            answers = dict(zip(asked, pool.map(one, asked), strict=True))
        except BaseException:
            self.close()  # Ctrl-C must not wait for a site that loads its data
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        refusals = [answer for answer in answers.values() if isinstance(answer, Refusal)]
        return {site: a for site, a in answers.items() if not isinstance(a, Refusal)}, refusals

    def send_revocations(self) -> dict[SiteName, int]:
        """Send our revocation lists to every site; return the list numbers in force there.

        Call this first, so that revoked sites take no part. Unreachable sites are ignored here:
        the next question reports them.
        """
        lists = self.identity.trust.lists_pem if self.identity else b""
        return self.ask(lambda _, client: client.revoke(lists))[0] if lists else {}

    def describe(
        self, sites: Iterable[SiteName] | None = None
    ) -> tuple[dict[SiteName, NodeDescription], list[Refusal]]:
        def question(site: SiteName, client: OperatorClient) -> NodeDescription:
            node = client.describe()
            if CONTRACT not in node.contracts:
                known = ", ".join(node.contracts) or "no contract"
                message = f"{site} supports {known} (version {node.version}), not {CONTRACT}"
                raise PeerError("E-PEER-CONTRACT", message)
            return node

        return self.ask(question, sites)

    def reports(
        self, run: RunId, sites: Iterable[SiteName] | None = None
    ) -> tuple[dict[SiteName, RunReport], list[Refusal]]:
        def question(site: SiteName, client: OperatorClient) -> RunReport:
            report = client.report(run)
            own = all(site_of(step.step) == site for step in report.steps)
            if (report.run, report.site) != (run, site) or not own:
                raise PeerError("E-PEER-PROTOCOL", f"{site} sent a report that is not its own")
            return report

        return self.ask(question, sites)

    def cancel(
        self, run: RunId, reason: str, reports: Mapping[SiteName, RunReport]
    ) -> tuple[dict[SiteName, RunState], list[Refusal]]:
        """End the plan that each site reports; other sites get the first one reported."""
        plans = {site: report.plan_id for site, report in reports.items()}
        first = next(iter(plans.values()), "")
        commands = {
            plan: signed_cancel(run, plan, reason, self.identity)
            for plan in {first, *plans.values()}
        }
        return self.ask(lambda site, client: client.cancel(commands[plans.get(site, first)]))

    def prepare(
        self,
        plan: Plan,
        *,
        check_only: bool,
        examine: bool = False,
        sites: Iterable[SiteName] | None = None,
        answered: Answered | None = None,
    ) -> tuple[dict[SiteName, PrepareAnswer], list[Refusal]]:
        """Ask every site, or these, to take part; with `check_only`, without any commitment.

        With `examine` a site checks everything it can; a refusal is then an answer without a state.
        """
        slices = signed_slices(plan, self.identity)

        def question(site: SiteName, client: OperatorClient) -> PrepareAnswer:
            return client.prepare(slices[site], check_only=check_only, examine=examine)

        asked = list(slices if sites is None else sites)
        return self.ask(question, asked, per_host=_PREPARES_PER_HOST, answered=answered)

    def prepare_alone(
        self, plans: Mapping[SiteName, Plan]
    ) -> tuple[dict[SiteName, PrepareAnswer], list[Refusal]]:
        """Ask each site about a plan of its own, without any commitment."""

        def question(site: SiteName, client: OperatorClient) -> PrepareAnswer:
            slice_ = signed_slices(plans[site], self.identity)[site]
            return client.prepare(slice_, check_only=True)

        return self.ask(question, plans, per_host=_PREPARES_PER_HOST)


def expiry_warnings(identity: Identity | None, nodes: Iterable[NodeDescription]) -> list[str]:
    """Warnings about certificates of the operator and the sites that expire soon."""
    texts = [*(identity.warnings() if identity else ())]
    for node in nodes:
        if 0 < node.certificate_expires < _FAR_SECONDS:
            date = datetime.fromtimestamp(node.certificate_expires, UTC)
            texts += [text for text in (expiry_warning(f"site/{node.site}", date),) if text]
    return texts


def refused(refusals: list[Refusal], hint: str | None = None) -> FedelmyError:
    """One error for all refusals: a single one as it is, several in a list with `hint`."""
    if len(refusals) == 1:
        site, error = refusals[0].site, refusals[0].error
        is_named = re.search(rf"(?<![\w-]){re.escape(site)}(?![\w-])", error.message)
        text = error.message if is_named else f"{site}: {error.message}"
        return type(error)(error.code, text, hint=error.hint)
    lines = [_refusal_text(refusal) for refusal in refusals]
    summary = f"{len(refusals)} sites refused or did not answer:"
    return RunError("E-RUN-REFUSED", "\n  ".join([summary, *lines]), hint=hint)


def _refusal_text(refusal: Refusal) -> str:
    site, error = refusal.site, refusal.error
    message = error.message.removeprefix(f"{site}: ")
    return f"{site}: {error.code}: {message}\n    {error.hint}"
