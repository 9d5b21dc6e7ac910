"""Prepare: check beforehand whether this site can and may take part in a run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedelmy_node.config.plan_file import read_slice
from fedelmy_node.config.site_file import SiteConfig
from fedelmy_node.consent.rules import check_listed, efforts, refuse, refuse_report
from fedelmy_node.device.supervisor import shuts_down
from fedelmy_node.device.trainer_process import OneJob
from fedelmy_node.domain.errors import (
    ConsentError,
    DataError,
    FedelmyError,
    IdentityError,
    RunError,
    TrainingError,
)
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.plan import Slice
from fedelmy_node.domain.reports import Finding, Signed
from fedelmy_node.domain.step_traits import TRAIN
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.peers.connections import Peers
from fedelmy_node.run.workspace import Workspace
from fedelmy_node.store.audit_log import Act, Record, silent
from fedelmy_node.store.disk_budget import check_room, needed_bytes
from fedelmy_node.store.durable_files import remove_tree
from fedelmy_node.store.journal import Journal
from fedelmy_node.store.records import Prepared, RunRecord
from fedelmy_node.store.state_directory import Layout
from fedelmy_node.training.data import parse_source
from fedelmy_node.training.job import PREPARE, Job
from fedelmy_node.training.models import check_model
from fedelmy_node.training.strategies import check_operations, check_recipe

logger = logging.getLogger(__name__)


class Preparation:
    """Check plans one at a time: opening the data needs a trainer."""

    def __init__(
        self,
        config: SiteConfig,
        layout: Layout,
        site: SiteName,
        workspace: Workspace,
        journal: Journal,
        peers: Peers,
    ) -> None:
        self._config = config
        self._layout = layout
        self._site = site
        self._workspace = workspace
        self._journal = journal
        self._peers = peers
        self._one_at_a_time = threading.Lock()
        self._looking: OneJob | None = None
        self._closed = False

    def accept(
        self,
        signed: Signed,
        operator: str,
        *,
        check_only: bool,
        by_file: bool = False,
        record: Record = silent,
    ) -> tuple[Prepared, RunState]:
        """Check a plan, journal the run, and return it with its state; refusals are raised.

        The run is journaled before the next plan is checked, so that two launchers cannot both
        create it. A plan from a file (`by_file`) always waits for approval.
        """
        plan = read_slice(signed.payload)
        try:
            with self._one_at_a_time:
                known = self._journal.find_run(plan.run)
                if known is not None and _stands(known, signed.payload):
                    return known.prepared, known.state
                self._check_consent(plan, operator)
                self._peers.check(plan)
                prepared = self._look(plan, signed, operator, trial=False)
                refuse_report(plan, self._config.consent, prepared.report)
                check_room(self._need(plan, prepared), self._layout.free_bytes())
                asks = by_file or self._config.consent.require_approval
                state = RunState.PENDING if asks else RunState.PREPARED
                record(_plan_act("plan-asked" if check_only else "plan-accepted", prepared, state))
                if not check_only:
                    self._journal.add_run(prepared, state)
        except FedelmyError as error:
            error.about = plan.run
            raise
        return prepared, state

    def examine(
        self,
        signed: Signed,
        operator: str,
        identity: Identity | None,
        *,
        trial: bool,
        record: Record = silent,
    ) -> tuple[Mapping[str, Any], RunState | None, tuple[Finding, ...]]:
        """Return all findings about a plan, this site and its neighbours; state None: a refusal.

        An operator whom this site does not accept is refused as usual and learns nothing.
        """
        from fedelmy_node.ops.doctor.plan_checks import PlanExamination  # an idle daemon is small

        plan = read_slice(signed.payload)
        with self._one_at_a_time:
            self._check_consent(plan, operator)
            examination = PlanExamination(
                plan=plan,
                config=self._config,
                layout=self._layout,
                peers=self._peers,
                identity=identity,
                look=lambda: self._look(plan, signed, operator, trial=trial),
                need=partial(self._need, plan),
            )
            findings = tuple(examination.findings())
        prepared, refusal = examination.prepared, examination.refusal
        state = RunState.PENDING if self._config.consent.require_approval else RunState.PREPARED
        if prepared is None or refusal is not None:
            code = refusal.code if refusal else ""
            record(Act(act="plan-refused", run=plan.run, code=code, must=False))
        else:
            record(_plan_act("plan-asked", prepared, state))
        report = (
            {key: value for key, value in prepared.report.items() if key != "trial"}
            if prepared
            else {}
        )
        return report, None if refusal else state, findings

    def close(self) -> None:
        """Stop a check in progress."""
        self._closed = True
        if self._looking is not None:
            self._looking.stop()

    def _check_consent(self, plan: Slice, operator: str) -> None:
        if plan.site != self._site:
            hint = "Ask the operator for this site's plan; compare the names in federation.toml and the certificates."
            raise IdentityError(
                "E-IDENTITY-SITE",
                f"the plan is for site {plan.site}, but this is {self._site}",
                hint=hint,
            )
        check_listed(self._config.consent, self._site, operator)
        if self._config.data is None:
            raise DataError(
                "E-DATA-SOURCE",
                f"the node of {self._site} was started without data",
                hint="Start it with --data, or set source under [data] in site.toml.",
            )
        parse_source(self._config.data)
        check_model(plan.recipe.model.name)
        refuse(plan, self._config.consent)
        # This imports the strategy: not before the site agrees to its name.
        check_recipe(plan.recipe)
        check_operations(plan)

    def _look(self, plan: Slice, signed: Signed, operator: str, *, trial: bool) -> Prepared:
        """Have a trainer build the model on the meta device and open the data, and perhaps try a
        few batches.
        """
        job = Job(
            kind=PREPARE,
            site=self._site,
            visit=0,
            recipe=plan.recipe,
            data=self._workspace.data,
            device=self._config.device,
            processes=self._config.trainer.processes,
            fast=self._config.trainer.fast,
            trial=trial,
            code=self._config.consent.code,
            weights=self._config.weights,
        )
        scratch = self._layout.scratch(plan.run)
        self._looking = OneJob(job, scratch, {"run": plan.run})
        try:
            if self._closed:
                raise shuts_down()
            outcome = self._looking.run()
        except TrainingError as error:
            said = f"the trainer said: {_tail(scratch / 'trainer.log')}"
            logger.warning(
                "checking the data failed: %s", error, extra={"run": plan.run, "private": said}
            )
            raise
        finally:
            self._looking = None
            remove_tree(scratch)
        usual = outcome.specs.get(TRAIN) or next(iter(outcome.specs.values()))
        return Prepared(
            payload=signed.payload,
            slice=plan,
            signature=signed.signature,
            certificate=signed.certificate,
            operator=operator,
            manifest=usual.manifest,
            report=outcome.report,
            metadata=usual.metadata,
            specs={name: spec for name, spec in outcome.specs.items() if spec != usual},
        )

    def _need(self, plan: Slice, prepared: Prepared) -> int:
        """Return the bytes that the run needs on this site's disk."""
        members = max((effort.members for effort in efforts(plan)), default=0)
        bundles = len(plan.edges_in) + len(plan.steps)
        states = sum(plan.traits(step.id).keeps_state for step in plan.steps)
        return needed_bytes(
            prepared.largest,
            bundles=bundles,
            members=members,
            keep_pool=self._config.keep_pool,
            state_bytes=states * prepared.report.get("state_bytes", 0),
        )


def _plan_act(act: str, prepared: Prepared, state: RunState) -> Act:
    plan = prepared.slice
    facts = {
        "federation": plan.federation,
        "model": plan.recipe.model.name,
        "strategy": plan.recipe.strategy.name,
        "operator": prepared.operator,
        "plan_sha256": prepared.sha256,
        "state": state.value,
    }
    return Act(act=act, run=plan.run, facts=facts)


def _stands(known: RunRecord, payload: bytes) -> bool:
    """Whether an accepted run has exactly this plan. A plan can only replace one that never
    began.
    """
    if known.code == "E-CONSENT-REFUSED" and known.prepared.payload == payload:
        raise ConsentError(
            "E-CONSENT-REFUSED", known.message
        )  # a person has decided; only another plan is looked at
    if known.state in (RunState.EXPIRED, RunState.CANCELLED) and not known.has_begun:
        return False
    if known.prepared.payload != payload:
        raise RunError("E-RUN-CONFLICT", f"run {known.slice.run} exists here with another plan")
    return True


def _tail(path: Path, limit: int = 4000) -> str:
    return path.read_text("utf-8", errors="replace")[-limit:] if path.exists() else "nothing"
