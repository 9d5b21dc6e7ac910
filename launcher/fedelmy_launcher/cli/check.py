"""`fedelmy-launch check`: everything that can be known before a run, without starting one."""

from __future__ import annotations

from dataclasses import replace
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
    from collections.abc import Mapping, Sequence

    from fedelmy_launcher.checking import Checked, Estimate
    from fedelmy_node.domain.findings import Finding
    from fedelmy_node.domain.names import SiteName
    from fedelmy_node.errors import FedelmyError
    from fedelmy_node.identity.keystore import Identity

__all__ = ["check"]

_HANG = 19
"""Where what is said of a site begins."""


@click.command()
@federation_argument
@head_option
@operator_options
@click.option("--quick", is_flag=True, help="Only ask whether the sites would take part: no examinations, no estimate.")
@click.option("--all", "show_all", is_flag=True, help="Show everything that was found, not only what is wrong.")
@json_option
def check(
    federation: Path, head: str | None, identity: Path, insecure: bool, quick: bool, show_all: bool, as_json: bool
) -> int:
    """Ask every site of FEDERATION whether it would take part, and change nothing.

    The way to every site is looked at from here: name, connection, TLS, certificate, versions, clock, speed. Then
    every site examines itself: certificate, disk, data, device (a few batches are trained), and the way to
    its neighbours. From that follows how long a run would take.
    The operator's revocation list, if there is one, is handed to every site first.
    Exit code 0: a run would start; otherwise that of the first problem.

    \b
    Examples:
      fedelmy-launch check federation.toml
      fedelmy-launch check federation.toml --all
      fedelmy-launch check federation.toml --head north.example:50051 --quick
    """
    from fedelmy_launcher.checking import check_sites, estimate
    from fedelmy_launcher.control import Sites, expiry_warnings
    from fedelmy_launcher.plans import compile_plan, new_run_id
    from fedelmy_node.cli.findings import finding_json, wrapped
    from fedelmy_node.cli.patience import Patience
    from fedelmy_node.domain.events import RunState

    described = described_federation(federation, head, lambda: load_operator(identity, insecure))
    plan = compile_plan(described, new_run_id(described))
    with Sites(described, load_operator(identity, insecure)) as sites, Patience(quiet=as_json) as patience:
        numbers = sites.bring_lists()
        checked = check_sites(sites, plan, quick=quick, doing=patience.doing)
    nodes, answers, refusals = checked.nodes, checked.answers, checked.refusals
    reports = {site: dict(answer.report) for site, answer in answers.items()}
    approving = [site for site, answer in answers.items() if answer.state == RunState.PENDING]
    warnings = _warnings(checked)
    warnings += expiry_warnings(sites.identity, nodes.values()) + _newer_lists(sites.identity, numbers)
    problems = {refusal.site: refusal.error for refusal in refusals}
    size = max((int(report.get("bundle_bytes", 0)) for report in reports.values()), default=0)
    expected = None if quick or problems else estimate(plan, checked.findings, size)
    if as_json:
        emit_json(
            {
                "ready": not problems,
                "sites": reports,
                "approval": approving,
                "problems": {s: {"code": e.code, "message": e.message, "hint": e.hint} for s, e in problems.items()},
                "warnings": warnings,
                "findings": {site: [finding_json(f) for f in found] for site, found in checked.findings.items()},
                "estimate": expected and {
                    "seconds": expected.seconds, "training_seconds": expected.training_seconds,
                    "transfer_seconds": expected.transfer_seconds, "unknown": list(expected.unknown),
                },
            }
        )  # fmt: skip
    else:
        told: set[str] = set()
        for member in described.members:
            found = checked.findings.get(member.name, ())
            error = problems.get(member.name)
            if error is not None:
                _show_problem(member.name, error, answered=member.name in nodes)
            else:
                _show_ready(member.name, reports.get(member.name), member.name in approving)
            _show_findings(found, error, show_all, told)
        for warning in warnings:
            click.echo("\n           ".join(wrapped(f"  warning: {warning}", 11)))
        if expected is not None:
            _show_estimate(expected)
    return refusals[0].error.exit_code if refusals else 0


def _show_problem(site: SiteName, error: FedelmyError, *, answered: bool) -> None:
    from fedelmy_node.cli.findings import wrapped

    verdict = "refused" if answered else "no answer"
    first, *others = wrapped(f"{verdict}  {error}", _HANG)
    click.echo(f"  {site:<16} {click.style(verdict, fg='red')}{first.removeprefix(verdict)}")
    for line in (*others, *wrapped(error.hint, _HANG)):
        click.echo(f"{'':{_HANG}}{line}")


def _show_ready(site: SiteName, report: dict[str, Any] | None, approving: bool) -> None:
    from fedelmy_node.cli.findings import wrapped

    if report is None:
        click.echo(f"  {site:<16} reached, but not asked further")
        return
    first, *others = wrapped(_counts(report), _HANG + 9)
    click.echo(f"  {site:<16} {click.style('ready', fg='green')}    {first}")
    for line in others:
        click.echo(f"{'':{_HANG + 9}}{line}")
    if approving:
        click.echo(f"{'':19}its administrator has to approve every run (fedelmy-node runs approve RUN)")


def _show_findings(findings: Sequence[Finding], error: FedelmyError | None, show_all: bool, told: set[str]) -> None:
    """What is wrong, or everything; the reason of a refusal was told already, and advice is told once."""
    from fedelmy_node.cli.findings import finding_lines, summary_line

    new = [f for f in findings if error is None or f.verdict != "failure" or f.message not in error.message]
    for finding in findings if show_all else (finding for finding in new if finding.verdict != "ok"):
        label = f"{finding.subject}:" if finding.check in finding.subject else f"{finding.subject}, {finding.check}:"
        shown = replace(finding, fix="as above") if finding.fix in told else finding
        told |= {finding.fix} - {""}
        for line in finding_lines(shown, indent=4, label=label):
            click.echo(line)
    if new and not show_all:
        click.echo(f"    {summary_line(findings)}")


def _show_estimate(expected: Estimate) -> None:
    from fedelmy_node.daemon.examination.work import duration_text

    if expected.seconds == 0:
        return
    without = f", without {', '.join(expected.unknown)}" if expected.unknown else ""
    click.echo(
        f"  A run takes about {duration_text(expected.seconds)}{without}:"
        f" training {duration_text(expected.training_seconds)}, hand-overs {duration_text(expected.transfer_seconds)}."
    )


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
        words = {"train": "training", "validation": "validation", "test": "test"}  # of which a site may tell some
        text = ", ".join(f"{sizes[part]} {word}" for part, word in words.items() if part in sizes) + " samples"
    missing = report.get("missing_classes")
    return text + (f"; has no {', '.join(missing)}" if missing else "")


def _warnings(checked: Checked) -> list[str]:
    """What would not stop a run but should be known: equal bytes need equal torch, packages and CPU capability."""
    nodes, reports = checked.nodes.values(), [answer.report for answer in checked.answers.values()]
    warnings = []
    for name, values in (
        ("versions of fedelmy", {node.version for node in nodes}),
        ("versions of torch", {node.torch for node in nodes}),
        ("packages", {" and ".join(report.get("packages", [])) or "none" for report in reports if report}),
        ("CPU capabilities", {report["cpu_capability"] for report in reports if "cpu_capability" in report}),
    ):
        if len(values) > 1:
            warnings.append(f"the sites have different {name}: {', '.join(sorted(values))}")
    older = sorted(node.site for node in nodes if not node.names_plans)
    if older:
        warnings.append(
            f"{', '.join(older)}: older software, which does not tell plans of one name apart;"
            " give every run there a name of its own, and have it upgraded"
        )
    if checked.skewed:
        warnings.append(f"the clocks of {', '.join(checked.skewed)} differ from this machine's by more than 30 s")
    return warnings
