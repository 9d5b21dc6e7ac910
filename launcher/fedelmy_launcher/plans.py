"""The plan compiler: a federation and a run id become a plan, and every site's slice of it is signed."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Mapping

from fedelmy_launcher.topologies import wired
from fedelmy_launcher.topologies.delivery import delivery_steps
from fedelmy_node import CONTRACT
from fedelmy_node.config.decode import canonical_json
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import RunId, SiteName, run_id, site_of
from fedelmy_node.domain.plan import MAX_STEPS, PLAN_ID_DIGITS, Neighbour, Plan
from fedelmy_node.domain.reports import Signed
from fedelmy_node.errors import ConfigError
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.signing import Purpose, sign
from fedelmy_node.training.seeds import derive

__all__ = ["new_run_id", "new_plan_id", "compile_plan", "signed_slices", "signed_cancel"]


def new_run_id(federation: Federation) -> RunId:
    """Name, time and a little chance: readable, sorted by time, never the same twice."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return run_id(f"{federation.name}-{moment}-{secrets.token_hex(2)}")


def compile_plan(federation: Federation, run: RunId) -> Plan:
    """The graph of a run; the same federation and run id always give the same plan."""
    sites = [member.name for member in federation.members]
    if federation.order == "random":
        random.Random(derive(federation.recipe.seed, "order")).shuffle(sites)
    training = wired(federation.topology, federation.topology_settings, sites)
    if federation.deliver == "last":
        training = training.ending_with(training.results[-1])
        _check_keeper(federation, site_of(training.results[-1]))
    steps = training.steps + delivery_steps(training, federation.deliver)
    if len(steps) > MAX_STEPS:
        message = f"the run would have {len(steps)} steps; at most {MAX_STEPS} are possible"
        raise ConfigError("E-CONFIG-VALUE", message, hint="Take fewer rounds or fewer sites.")
    plan = Plan(
        contract=CONTRACT,
        run=run,
        federation=federation.name,
        recipe=federation.recipe,
        sites=tuple(
            Neighbour(site=member.name, address=member.address, absence=federation.absence_of(member))
            for member in federation.members
        ),
        steps=steps,
    )
    _check_ways(plan)
    return plan


def _check_keeper(federation: Federation, keeper: SiteName) -> None:
    member = next(member for member in federation.members if member.name == keeper)
    if federation.absence_of(member).on_unreachable == "skip":
        raise ConfigError(
            "E-CONFIG-VALUE",
            f'{keeper} alone keeps the result (deliver = "last"), so it cannot be skipped',
            hint=f'Set on_unreachable = "wait" or "abort" for {keeper} under [[sites]], or deliver = "all".',
        )


def _check_ways(plan: Plan) -> None:
    if plan.stuck:
        names = ", ".join(plan.stuck)
        raise ConfigError(
            "E-CONFIG-VALUE",
            f"{names} cannot be skipped: what is merged there for the sites behind can come from nobody else",
            hint=f'Set on_unreachable = "wait" or "abort" for {names} under [[sites]].',
        )


def signed_slices(plan: Plan, identity: Identity | None) -> Mapping[SiteName, Signed]:
    """What each site is sent: its own slice, signed by the operator (unsigned between --insecure nodes)."""
    sites = dict.fromkeys(step.site for step in plan.steps)
    return {site: _signed(canonical_json(plan.slice_for(site)), identity, Purpose.PLAN) for site in sites}


def new_plan_id() -> str:
    """Of a plan that no site has yet; see `Slice.plan_id`."""
    return secrets.token_hex(PLAN_ID_DIGITS // 2)


def signed_cancel(
    run: RunId, plan_id: str, reason: str, identity: Identity | None, *, withdraw: bool = False
) -> Signed:
    """The operator's word that this plan of a run has ended; any neighbour may carry it on.

    A withdrawal ends it only where it is prepared and nothing more.
    """
    readable = reason[:500].encode("utf-8", "replace").decode()  # a terminal may have passed on half a character
    payload = canonical_json({"run": run, "plan_id": plan_id, "reason": readable, "withdraw": withdraw})
    return _signed(payload, identity, Purpose.CANCEL)


def _signed(payload: bytes, identity: Identity | None, purpose: Purpose) -> Signed:
    if identity is None:
        return Signed(payload=payload)
    signature = sign(identity, payload, purpose=purpose)
    return Signed(payload=payload, signature=signature.value, certificate=signature.certificate_pem)
