"""Prepare: would this site take its part in a run? Everything that can be known beforehand is checked here."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Mapping
from typing import Any

from fedelmy_node.bundles.size import tensor_bytes
from fedelmy_node.config.site import SiteConfig
from fedelmy_node.daemon.peers import Peers
from fedelmy_node.daemon.trainers import run_job
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.reports import Signed
from fedelmy_node.errors import ConsentError, DataError, IdentityError, RunError, StoreError
from fedelmy_node.identity.keystore import LiveIdentity
from fedelmy_node.identity.signing import Purpose, Signature, verify
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.layout import Layout
from fedelmy_node.store.records import Prepared, RunRecord, read_slice
from fedelmy_node.training.data import parse_source
from fedelmy_node.training.job import DataSpec, Job
from fedelmy_node.training.models import check_model
from fedelmy_node.training.strategies import settings_for

__all__ = ["Preparation", "check_operator", "read_cancel"]


class Preparation:
    """Checks plans one at a time: each look at the data takes a trainer."""

    def __init__(
        self, config: SiteConfig, layout: Layout, site: SiteName, journal: Journal, peers: Peers,
        identity: LiveIdentity | None,
    ) -> None:  # fmt: skip
        self._config = config
        self._layout = layout
        self._site = site
        self._journal = journal
        self._peers = peers
        self._identity = identity
        self._one_at_a_time = threading.Lock()

    def accept(self, signed: Signed, operator: str, *, check_only: bool) -> tuple[RunId, Mapping[str, Any]]:
        """The run of a plan that this site takes part in, and its report; refusals are raised."""
        signer = check_operator(signed, self._identity, Purpose.PLAN) or operator
        plan = read_slice(signed.payload)
        with self._one_at_a_time:
            known = self._journal.find_run(plan.run)
            if known is not None and _stands(known, signed.payload):
                return plan.run, known.prepared.report
            self._check_consent(plan, signer)
            self._peers.check(plan)
            prepared = self._look(plan, signed, signer)
            self._check_disk(plan, prepared)
            if not check_only:
                self._journal.add_run(prepared)
        return plan.run, prepared.report

    def _check_consent(self, plan: Slice, operator: str) -> None:
        if plan.site != self._site:
            raise IdentityError("E-IDENTITY-SITE", f"the plan is for site {plan.site}, this is {self._site}")
        operators = self._config.operators
        if operators is not None and operator not in operators:
            raise ConsentError("E-CONSENT-OPERATOR", f"site {self._site} takes no plans of operator {operator}")
        accepted = self._config.accept_from
        for edge in plan.edges_in:
            if accepted is not None and edge.sender not in accepted:
                raise ConsentError("E-CONSENT-ACCEPT", f"site {self._site} does not accept from {edge.sender}")
        if self._config.data is None:
            raise DataError(
                "E-DATA-SOURCE",
                f"the node of {self._site} was started without data",
                hint="Start it with --data, or set source under [data] in site.toml.",
            )
        parse_source(self._config.data)
        check_model(plan.recipe.model.name)
        settings_for(plan.recipe.strategy)

    def _look(self, plan: Slice, signed: Signed, operator: str) -> Prepared:
        """Have a trainer build the model on the meta device and open the data."""
        assert self._config.data is not None
        data = DataSpec(source=self._config.data, indices=self._config.indices, unreadable=self._config.unreadable)
        job = Job(kind="prepare", site=self._site, visit=0, recipe=plan.recipe, data=data, device=self._config.device)
        scratch = self._layout.scratch(plan.run)
        outcome = run_job(job, scratch)
        shutil.rmtree(scratch)  # kept, with its log, only if the trainer failed
        return Prepared(
            payload=signed.payload, slice=plan, signature=signed.signature, certificate=signed.certificate,
            operator=operator, manifest=outcome.manifest, report=outcome.report,
        )  # fmt: skip

    def _check_disk(self, plan: Slice, prepared: Prepared) -> None:
        """Room for what comes in and for what the steps write, pool members included if they are kept."""
        size = tensor_bytes(prepared.manifest)
        need = size * (len(plan.edges_in) + len(plan.steps) + 2)
        free = self._layout.free_bytes()
        if free < need:
            raise StoreError("E-STORE-DISK", f"the run needs about {need} bytes, the disk has {free} left")


def check_operator(signed: Signed, identity: LiveIdentity | None, purpose: Purpose) -> str | None:
    """The operator who signed; None on a node that runs without identities (--insecure)."""
    if identity is None:
        return None
    signature = Signature(value=signed.signature, certificate_pem=signed.certificate)
    return verify(signed.payload, signature, identity().ca_pem, purpose=purpose).name


def read_cancel(payload: bytes) -> tuple[RunId, str]:
    """The run and the reason in a signed cancel."""
    try:
        body = json.loads(payload)
        return RunId(str(body["run"])), str(body.get("reason", ""))[:500]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError("E-RUN-PLAN", "the cancel is not usable") from error


def _stands(known: RunRecord, payload: bytes) -> bool:
    """Whether a run that was accepted before is this very one, and still alive; another plan cannot take its name."""
    if known.prepared.payload != payload:
        raise RunError("E-RUN-CONFLICT", f"run {known.slice.run} exists here with another plan")
    return known.state != RunState.EXPIRED
