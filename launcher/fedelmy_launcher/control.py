"""Run control: ask every site first, start where nothing is needed, then listen until it is over.

Nothing here has to survive: a launcher that died is simply run again on the same run.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fedelmy_launcher.plans import signed_cancel, signed_slices
from fedelmy_node import CONTRACT
from fedelmy_node.domain.events import Event, RunState
from fedelmy_node.domain.federation import Federation, Member
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.reports import NodeDescription, RunReport
from fedelmy_node.errors import FedelmyError, IdentityError, InternalError, PeerError, RunError
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.rpc.clients import OperatorClient
from fedelmy_node.rpc.dial import open_channel

__all__ = ["Sites", "Refusal", "refused", "start_run", "follow", "Lost", "Ended"]

logger = logging.getLogger(__name__)
T = TypeVar("T")
_RETRY_SECONDS: Final = 2.0
"""Between two attempts to hear from a site that does not answer."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A site that said no, or nothing."""

    site: SiteName
    error: FedelmyError


class Sites:
    """The nodes of a federation as the operator reaches them; asks all of them at once."""

    def __init__(self, federation: Federation, identity: Identity | None) -> None:
        self.members: Mapping[SiteName, Member] = {member.name: member for member in federation.members}
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
            self.members[site].address,
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
        self, question: Callable[[SiteName, OperatorClient], T], sites: list[SiteName] | None = None
    ) -> tuple[dict[SiteName, T], list[Refusal]]:
        """What every site answers, and who refused or could not be reached."""

        def one(site: SiteName) -> T | Refusal:
            try:
                return question(site, self.client(site))
            except FedelmyError as error:
                return Refusal(site, error)

        asked = list(self.members) if sites is None else sites
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

    def reports(self, run: RunId) -> tuple[dict[SiteName, RunReport], list[Refusal]]:
        return self.ask(lambda _, client: client.report(run))

    def cancel(self, run: RunId, reason: str) -> tuple[dict[SiteName, RunState], list[Refusal]]:
        signed = signed_cancel(run, reason, self.identity)
        return self.ask(lambda _, client: client.cancel(signed))

    def prepare(self, plan: Plan, *, check_only: bool) -> tuple[dict[SiteName, Mapping[str, Any]], list[Refusal]]:
        """Ask every site whether it would take its part; with `check_only` it then forgets the question."""
        slices = signed_slices(plan, self.identity)
        return self.ask(lambda site, client: client.prepare(slices[site], check_only=check_only), sites=list(slices))


def start_run(sites: Sites, plan: Plan) -> dict[SiteName, Mapping[str, Any]]:
    """Prepare everywhere; if all agree, start the steps without inputs. One refusal, and nothing starts."""
    _, unreachable = sites.describe()
    if unreachable:
        raise refused(unreachable)
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


@dataclass(frozen=True, slots=True)
class Lost:
    """A site cannot be heard at the moment; it is asked again until it answers."""

    site: SiteName
    error: FedelmyError


@dataclass(frozen=True, slots=True)
class Ended:
    """A site has told everything: the run is over there, well or not, or the site will not tell."""

    site: SiteName
    error: FedelmyError | None = None
    """Why it does not tell."""


News = Event | Lost | Ended


def follow(sites: Sites, plan: Plan) -> Iterator[News]:
    """What happens at all sites as it happens, from the beginning, until the run ended at every site."""
    news: queue.SimpleQueue[News] = queue.SimpleQueue()
    stopped = threading.Event()
    names = list(dict.fromkeys(step.site for step in plan.steps))
    for site in names:
        thread = threading.Thread(
            target=_listen, args=(sites, site, plan.run, news, stopped), name=f"watch {site}", daemon=True
        )
        thread.start()
    open_streams = len(names)
    try:
        while open_streams:
            item = news.get()
            open_streams -= isinstance(item, Ended)
            yield item
    finally:
        stopped.set()


def _listen(sites: Sites, site: SiteName, run: RunId, news: queue.SimpleQueue[News], stopped: threading.Event) -> None:
    """One site's events, across interruptions: nothing is missed and nothing told twice."""
    after, ended = 0, Ended(site)
    try:
        while not stopped.is_set():
            try:
                for event in sites.client(site).watch(run, after):
                    after = event.seq
                    news.put(event)
                return
            except (PeerError, IdentityError) as error:
                sites.drop(site)
                news.put(Lost(site, error))
                stopped.wait(_RETRY_SECONDS)
    except FedelmyError as error:
        ended = Ended(site, error)
    except Exception as error:  # whoever follows must hear of the end
        logger.exception("fault while listening to %s", site)
        ended = Ended(site, InternalError("E-INTERNAL", f"listening to {site} met a fault: {error}"))
    finally:
        news.put(ended)
