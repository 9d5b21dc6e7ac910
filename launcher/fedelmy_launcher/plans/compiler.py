"""The plan compiler: turns a federation and a run id into a plan, and signs each site's slice."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedelmy_launcher.plans.topologies import build_wiring
from fedelmy_launcher.plans.topologies.wiring import delivery_steps
from fedelmy_node import CONTRACT
from fedelmy_node.config.decode import canonical_json, encode
from fedelmy_node.config.federation_file import federation_of, read_federation
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.federation import Federation, Member, Setting, StrategySpec
from fedelmy_node.domain.names import RunId, SiteName, run_id, site_of
from fedelmy_node.domain.plan import Neighbour, Plan
from fedelmy_node.domain.plan_steps import MAX_STEPS, PLAN_ID_DIGITS, Step
from fedelmy_node.domain.reports import Signed
from fedelmy_node.domain.step_traits import TRAIN, Traits
from fedelmy_node.identity.keystore import Identity
from fedelmy_node.identity.signatures import Purpose, sign
from fedelmy_node.training.models import check_model
from fedelmy_node.training.seeds import derive
from fedelmy_node.training.strategies import declared_traits, operations_of, result_of, settings_for

_MAX_REASON = 500


def load_federation(path: Path, found: Sequence[Member] | None = None) -> Federation:
    """Read a federation file and check its model, strategy and topology."""
    return read_federation(path, found, _check)


def federation_from(tables: Mapping[str, Any]) -> Federation:
    """The same as `load_federation`, from tables in memory."""
    return federation_of(tables, _check)


def _check(federation: Federation) -> None:
    check_model(federation.recipe.model.name)
    sites = [member.name for member in federation.members]
    build_wiring(federation, sites)


def new_run_id(federation: Federation) -> RunId:
    """A unique id that is readable and sorts by time."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return run_id(f"{federation.name}-{moment}-{secrets.token_hex(2)}")


def compile_plan(federation: Federation, run: RunId) -> Plan:
    """Build the graph of a run; the same federation and run id always give the same plan."""
    sites = [member.name for member in federation.members]
    if federation.order == "random":
        random.Random(derive(federation.recipe.seed, "order")).shuffle(sites)
    training = build_wiring(federation, sites)
    strategy = federation.recipe.strategy.name
    result = result_of(strategy)
    deliver = "last" if result.is_personal else federation.deliver
    if deliver == "last" and not result.is_personal:
        training = training.ending_with(training.results[-1])
        _check_keeper(federation, site_of(training.results[-1]))
    steps = training.steps + delivery_steps(training, deliver)
    if len(steps) > MAX_STEPS:
        message = f"the run would have {len(steps)} steps; the limit is {MAX_STEPS}"
        raise ConfigError("E-CONFIG-VALUE", message, hint="Use fewer rounds or fewer sites.")
    plan = Plan(
        contract=CONTRACT,
        run=run,
        federation=federation.name,
        recipe=replace(federation.recipe, strategy=_resolved(federation.recipe.strategy)),
        sites=tuple(
            Neighbour(site=each.name, address=each.address, absence=federation.absence_of(each))
            for each in federation.members
        ),
        steps=steps,
        operations=_declared(strategy, steps),
        result=result.operation or TRAIN,
    )
    _check_skippable(plan)
    return plan


def _resolved(strategy: StrategySpec) -> StrategySpec:
    """Spell all settings out: another version at a site may have other defaults."""
    settings = encode(settings_for(strategy))
    scalars = {key: value for key, value in settings.items() if isinstance(value, Setting)}
    return replace(strategy, settings=scalars)


def _declared(strategy: str, steps: Sequence[Step]) -> dict[str, Traits]:
    """The traits of the operations that the plan uses, if they are not the built-in ones."""
    used, traits = {step.kind for step in steps}, declared_traits(strategy)
    return {operation: traits[operation] for operation in sorted(used & traits.keys())}


def _check_keeper(federation: Federation, keeper: SiteName) -> None:
    member = next(member for member in federation.members if member.name == keeper)
    if federation.absence_of(member).on_unreachable == "skip":
        message = f'only {keeper} keeps the result (deliver = "last"), so it cannot be skipped'
        hint = f'Set deliver = "all", or on_unreachable = "wait" or "abort" for {keeper}.'
        raise ConfigError("E-CONFIG-VALUE", message, hint=hint)


def _check_skippable(plan: Plan) -> None:
    skippable = [site.site for site in plan.sites if site.absence.on_unreachable == "skip"]
    operations = operations_of(plan.recipe.strategy.name)
    fixed = [
        step
        for step in plan.steps
        if step.site in skippable
        and step.id in plan.feeding_others
        and step.kind in operations
        and not operations[step.kind].is_replaceable
    ]
    if fixed:
        names, strategy = (
            ", ".join(dict.fromkeys(step.site for step in fixed)),
            plan.recipe.strategy.name,
        )
        message = (
            f"strategy {strategy!r} cannot continue without operation {fixed[0].kind!r}, so {names}"
        )
        hint = f'Set on_unreachable = "wait" or "abort" for {names}.'
        raise ConfigError("E-CONFIG-VALUE", f"{message} cannot be skipped", hint=hint)
    if plan.stuck:
        names = ", ".join(plan.stuck)
        message = f"{names} cannot be skipped: later sites need the merge that is computed there"
        hint = f'Set on_unreachable = "wait" or "abort" for {names} under [[sites]].'
        raise ConfigError("E-CONFIG-VALUE", message, hint=hint)


def signed_slices(plan: Plan, identity: Identity | None) -> Mapping[SiteName, Signed]:
    """Each site's own slice, signed by the operator (unsigned between --insecure nodes)."""
    sites = dict.fromkeys(step.site for step in plan.steps)
    return {
        site: _signed(canonical_json(plan.slice_for(site)), identity, Purpose.PLAN)
        for site in sites
    }


def new_plan_id() -> str:
    """A random id for a new plan; see `Slice.plan_id`."""
    return secrets.token_hex(PLAN_ID_DIGITS // 2)


def signed_cancel(
    run: RunId, plan_id: str, reason: str, identity: Identity | None, *, withdraw: bool = False
) -> Signed:
    """The operator's signed cancellation of this plan of a run; any neighbour may forward it.

    A withdrawal only ends it where the run is prepared but not started.
    """
    # A terminal may have passed on half a character.
    readable = reason[:_MAX_REASON].encode("utf-8", "replace").decode()
    command = {"run": run, "plan_id": plan_id, "reason": readable, "withdraw": withdraw}
    return _signed(canonical_json(command), identity, Purpose.CANCEL)


def _signed(payload: bytes, identity: Identity | None, purpose: Purpose) -> Signed:
    if identity is None:
        return Signed(payload=payload)
    signature = sign(identity, payload, purpose=purpose)
    return Signed(payload=payload, signature=signature.value, certificate=signature.certificate_pem)
