"""Start a run: ask every site first, and withdraw it where one refuses.

Nothing here is persistent: a launcher that died can simply be run again on the same run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fedelmy_launcher.control.sites import Answered, Sites, refused
from fedelmy_launcher.plans.compiler import new_plan_id, signed_cancel
from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import RunId, SiteName
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.reports import RunReport


def prepare_run(
    sites: Sites, plan: Plan, answered: Answered | None = None
) -> dict[SiteName, RunReport]:
    """Prepare a run at every site and return the reports; if one site refuses, nothing starts."""
    sites.send_revocations()
    nodes, unreachable = sites.describe()
    if unreachable:
        problem = refused(unreachable)
        if any(known.run == plan.run for node in nodes.values() for known in node.runs):
            attach = f"`fedelmy-launch run --attach {plan.run}` follows it without this site."
            hint = f"{problem.hint} The run exists: {attach}"
            raise type(problem)(problem.code, problem.message, hint=hint)
        raise _not_started(problem)
    known, unknown = sites.reports(plan.run)
    plan = replace(plan, plan_id=plan.plan_id or _plan_id(known.values()))
    ended = (RunState.CANCELLED, RunState.EXPIRED)
    is_new = all(report.state in ended for report in known.values())
    is_new &= all(refusal.error.code == "E-RUN-UNKNOWN" for refusal in unknown)
    accepted, refusals = sites.prepare(plan, check_only=False, sites=nodes, answered=answered)
    if refusals:
        # An attempt to follow an existing run never ends it, unless a person has refused it.
        if is_new or any(refusal.error.code == "E-CONSENT-REFUSED" for refusal in refusals):
            withdraw(sites, plan.run, plan.plan_id, "another site refused", accepted)
        raise _not_started(refused(refusals)) if is_new else refused(refusals)
    reports, unheard = sites.reports(plan.run)
    if unheard:
        raise refused(unheard)
    return reports


def start_run(sites: Sites, run: RunId, reports: Mapping[SiteName, RunReport]) -> None:
    """Start a run that is prepared everywhere, at the sites where it is not running yet."""
    started = (RunState.RUNNING, RunState.DONE)
    waiting = [site for site, report in reports.items() if report.state not in started]
    _, problems = sites.ask(lambda _, client: client.start(run), sites=waiting)
    if problems:
        raise refused(problems)


def withdraw(
    sites: Sites, run: RunId, plan_id: str, reason: str, names: Iterable[SiteName]
) -> None:
    """End this plan of a run at these sites, unless it has started there."""
    withdrawal = signed_cancel(run, plan_id, reason, sites.identity, withdraw=True)
    sites.ask(lambda _, client: client.cancel(withdrawal), sites=names)


def _plan_id(reports: Iterable[RunReport]) -> str:
    """The plan of a run that is alive, done or refused by a person; else a new one.

    Never one that was cancelled anywhere: the signed cancellation may still reach the others.
    """
    known = tuple(reports)
    refused = [r.plan_id for r in known if r.code == "E-CONSENT-REFUSED"]
    ended = {r.plan_id for r in known if r.state == RunState.CANCELLED}
    alive = [r.plan_id for r in known if r.state != RunState.EXPIRED and r.plan_id not in ended]
    kept = refused + alive
    return kept[0] if kept else new_plan_id()


def _not_started(problem: FedelmyError) -> FedelmyError:
    """Add that nothing was started; the hint of several refusals says so already."""
    if problem.code == "E-RUN-REFUSED":
        return problem
    return type(problem)(problem.code, problem.message, hint=f"{problem.hint} Nothing was started.")
