"""`fedelmy-launch check`: everything that can be known before a run, without starting one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedelmy_launcher.cli.options import (
    described_federation,
    federation_argument,
    head_option,
    json_option,
    load_operator,
    operator_options,
)
from fedelmy_node.cli.frame import emit_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedelmy_node.domain.names import SiteName
    from fedelmy_node.domain.reports import NodeDescription, PrepareAnswer
    from fedelmy_node.identity.keystore import Identity

__all__ = ["check"]

_CLOCK_SECONDS = 30.0


@click.command()
@federation_argument
@head_option
@operator_options
@json_option
def check(federation: Path, head: str | None, identity: Path, insecure: bool, as_json: bool) -> int:
    """Ask every site of FEDERATION whether it would take part, and change nothing.

    Sites are reached, their certificates and versions compared, their data opened, their consent asked.
    The operator's revocation list, if there is one, is handed to every site first.
    Exit code 0: a run would start; otherwise that of the first problem.

    \b
    Examples:
      fedelmy-launch check federation.toml
      fedelmy-launch check federation.toml --head north.example:50051
    """
    from fedelmy_launcher.control import Sites, expiry_warnings
    from fedelmy_launcher.plans import compile_plan, new_run_id
    from fedelmy_node.domain.events import RunState
    from fedelmy_node.errors import PeerError

    described = described_federation(federation, head, lambda: load_operator(identity, insecure))
    plan = compile_plan(described, new_run_id(described))
    with Sites(described, load_operator(identity, insecure)) as sites:
        numbers = sites.bring_lists()
        nodes, refusals = sites.describe()
        answers: dict[SiteName, PrepareAnswer] = {}
        if not refusals:
            answers, refusals = sites.prepare(plan, check_only=True)
    reports = {site: dict(answer.report) for site, answer in answers.items()}
    approving = [site for site, answer in answers.items() if answer.state == RunState.PENDING]
    warnings = _warnings(list(nodes.values()), list(reports.values()))
    warnings += expiry_warnings(sites.identity, nodes.values()) + _newer_lists(sites.identity, numbers)
    problems = {refusal.site: refusal.error for refusal in refusals}
    if as_json:
        emit_json(
            {
                "ready": not problems,
                "sites": reports,
                "approval": approving,
                "problems": {s: {"code": e.code, "message": e.message, "hint": e.hint} for s, e in problems.items()},
                "warnings": warnings,
            }
        )
    else:
        for member in described.members:
            if member.name in problems:
                error = problems[member.name]
                verdict = "no answer" if isinstance(error, PeerError) else "refused"
                click.echo(f"  {member.name:<16} {click.style(verdict, fg='red')}  {error}\n{'':19}{error.hint}")
            elif member.name in reports:
                click.echo(f"  {member.name:<16} {click.style('ready', fg='green')}    {_counts(reports[member.name])}")
                if member.name in approving:
                    click.echo(f"{'':19}its administrator has to approve every run (fedelmy-node runs approve RUN)")
            else:
                click.echo(f"  {member.name:<16} reached, but not asked further")
        for warning in warnings:
            click.echo(f"  warning: {warning}")
    return refusals[0].error.exit_code if refusals else 0


def _newer_lists(identity: Identity | None, numbers: Mapping[SiteName, int]) -> list[str]:
    """Sites that know of revocations that this operator does not."""
    own = identity.trust.lists[0].number if identity and identity.trust.lists else 0
    return [
        f"{site} has a newer revocation list ({number}) than this operator ({own}): ask whoever keeps the CA for it"
        for site, number in numbers.items()
        if number > own
    ]


def _counts(report: dict[str, Any]) -> str:
    sizes = report.get("samples")
    text = "does not disclose how many samples it has"
    if sizes:
        text = f"{sizes['train']} training, {sizes['validation']} validation, {sizes['test']} test samples"
    missing = report.get("missing_classes")
    return text + (f"; has no {', '.join(missing)}" if missing else "")


def _warnings(nodes: list[NodeDescription], reports: list[dict[str, Any]]) -> list[str]:
    """What would not stop a run but should be known: equal bytes need equal torch and CPU capability."""
    warnings = []
    for name, values in (
        ("versions of fedelmy", {node.version for node in nodes}),
        ("versions of torch", {node.torch for node in nodes}),
        ("CPU capabilities", {report["cpu_capability"] for report in reports}),
    ):
        if len(values) > 1:
            warnings.append(f"the sites have different {name}: {', '.join(sorted(values))}")
    skewed = [node.site for node in nodes if abs(node.clock - time.time()) > _CLOCK_SECONDS]
    if skewed:
        warnings.append(f"the clocks of {', '.join(skewed)} differ from this machine's by more than 30 s")
    return warnings
