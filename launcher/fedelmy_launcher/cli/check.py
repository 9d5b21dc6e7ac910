"""`fedelmy-launch check`: check everything before a run, without starting one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedelmy_launcher.cli import options
from fedelmy_node.cli.app import emit_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedelmy_launcher.control.checks import Checked, Estimate
    from fedelmy_node.domain.errors import FedelmyError
    from fedelmy_node.domain.names import SiteName
    from fedelmy_node.domain.reports import Finding
    from fedelmy_node.identity.keystore import Identity

_HANG = 19
"""The column where the text about a site begins."""
_QUICK = "Only ask whether the sites would take part: no checks, no estimate."


@click.command()
@options.federation_argument
@options.head_option
@options.operator_options
@click.option("--quick", is_flag=True, help=_QUICK)
@click.option("--all", "show_all", is_flag=True, help="Show all findings, not only problems.")
@options.json_option
def check(
    federation: Path,
    head: str | None,
    operator: options.Operator,
    quick: bool,
    show_all: bool,
    as_json: bool,
) -> int:
    """Ask every site of FEDERATION whether it would take part, and change nothing.

    First the operator's revocation list, if there is one, is sent to every site. Then the
    connection from here to every site is checked: name, TLS, certificate, versions, clock, speed.
    Then every site checks itself: certificate, disk, data, device (it trains a few batches), and
    the connections to its neighbours. The last line estimates how long a run takes.

    Exit code 0: a run would start; otherwise that of the first problem.

    \b
    Examples:
      fedelmy-launch check federation.toml
      fedelmy-launch check federation.toml --all
      fedelmy-launch check federation.toml --head north.example:50051 --quick
    """
    from fedelmy_launcher.control.checks import check_sites, estimate
    from fedelmy_launcher.control.sites import Sites, expiry_warnings
    from fedelmy_launcher.plans.compiler import compile_plan, new_run_id
    from fedelmy_node.cli.finding_lines import finding_json, wrapped
    from fedelmy_node.cli.progress_line import ProgressLine
    from fedelmy_node.domain.events import RunState

    described = options.described_federation(federation, head, operator)
    plan = compile_plan(described, new_run_id(described))
    with Sites(described, operator()) as sites, ProgressLine(quiet=as_json) as progress:
        numbers = sites.send_revocations()
        checked = check_sites(sites, plan, quick=quick, doing=progress.show)
    nodes, answers, refusals = checked.nodes, checked.answers, checked.refusals
    reports = {site: dict(answer.report) for site, answer in answers.items()}
    approving = [site for site, answer in answers.items() if answer.state == RunState.PENDING]
    warnings = [*options.recipe_warnings(described), *_warnings(checked)]
    warnings += expiry_warnings(sites.identity, nodes.values())
    warnings += _newer_lists(sites.identity, numbers)
    problems = {refusal.site: refusal.error for refusal in refusals}
    size = max((int(report.get("bundle_bytes", 0)) for report in reports.values()), default=0)
    expected = None
    if not quick and not problems:
        loading, asking = checked.loading_seconds, checked.asking_seconds
        expected = estimate(
            plan, checked.findings, size, loading_seconds=loading, asking_seconds=asking
        )
    if as_json:
        found_json = {s: [finding_json(f) for f in fs] for s, fs in checked.findings.items()}
        emit_json(
            {
                "ready": not problems,
                "sites": reports,
                "approval": approving,
                "problems": {site: options.problem_json(error) for site, error in problems.items()},
                "warnings": warnings,
                "findings": found_json,
                "estimate": expected and _estimate_json(expected),
            }
        )
    else:
        shown: set[str] = set()
        for member in described.members:
            found = checked.findings.get(member.name, ())
            error = problems.get(member.name)
            if error is not None:
                _show_problem(member.name, error, answered=member.name in nodes)
            else:
                _show_ready(member.name, reports.get(member.name), member.name in approving)
            _show_findings(found, error, show_all, shown)
        for warning in warnings:
            click.echo("\n           ".join(wrapped(f"  warning: {warning}", 11)))
        if expected is not None:
            _show_estimate(expected)
    return refusals[0].error.exit_code if refusals else 0


def _show_problem(site: SiteName, error: FedelmyError, *, answered: bool) -> None:
    from fedelmy_node.cli.finding_lines import wrapped

    verdict = "refused" if answered else "no answer"
    first, *others = wrapped(f"{verdict}  {error}", _HANG)
    click.echo(f"  {site:<16} {click.style(verdict, fg='red')}{first.removeprefix(verdict)}")
    for line in (*others, *wrapped(error.hint, _HANG)):
        click.echo(f"{'':{_HANG}}{line}")


def _show_ready(site: SiteName, report: dict[str, Any] | None, approving: bool) -> None:
    from fedelmy_node.cli.finding_lines import wrapped

    if report is None:
        click.echo(f"  {site:<16} reachable, but not asked")
        return
    first, *others = wrapped(_counts(report), _HANG + 9)
    click.echo(f"  {site:<16} {click.style('ready', fg='green')}    {first}")
    for line in others:
        click.echo(f"{'':{_HANG + 9}}{line}")
    if approving:
        text = "its administrator has to approve every run (fedelmy-node runs approve RUN)"
        click.echo(f"{'':{_HANG}}{text}")


def _show_findings(
    findings: Sequence[Finding], error: FedelmyError | None, show_all: bool, shown: set[str]
) -> None:
    """Print the problems, or all findings; a repeated fix is abbreviated."""
    from fedelmy_node.cli.finding_lines import finding_lines, summary_line

    # The reason for a refusal was printed already.
    known = error.message if error else ""
    new = [f for f in findings if not known or f.verdict != "failure" or f.message not in known]
    for finding in findings if show_all else [each for each in new if each.verdict != "ok"]:
        subject, check_name = finding.subject, finding.check
        label = f"{subject}:" if check_name in subject else f"{subject}, {check_name}:"
        short = replace(finding, fix="as above") if finding.fix in shown else finding
        shown |= {finding.fix} - {""}
        for line in finding_lines(short, indent=4, label=label):
            click.echo(line)
    if new and not show_all:
        click.echo(f"    {summary_line(findings)}")


def _estimate_json(expected: Estimate) -> dict[str, Any]:
    keys = ("seconds", "training_seconds", "transfer_seconds")
    return {key: getattr(expected, key) for key in keys} | {"unknown": list(expected.unknown)}


def _show_estimate(expected: Estimate) -> None:
    from fedelmy_node.ops.doctor.training_checks import duration_text

    if expected.training_seconds == 0:
        return
    training, transfer, waiting = (
        duration_text(seconds)
        for seconds in (
            expected.training_seconds,
            expected.transfer_seconds,
            expected.waiting_seconds,
        )
    )
    without = f", without {', '.join(expected.unknown)}" if expected.unknown else ""
    click.echo(
        f"  A run takes about {duration_text(expected.seconds)}{without}: training {training},"
        f" hand-overs {transfer}, asking the sites and loading data {waiting}."
    )


def _newer_lists(identity: Identity | None, numbers: Mapping[SiteName, int]) -> list[str]:
    """Warnings about sites with a newer revocation list than this operator's."""
    own = identity.trust.lists[0].number if identity and identity.trust.lists else 0
    return [
        f"{site} has a newer revocation list ({number}) than this operator ({own}):"
        " get it from the operator who keeps the CA"
        for site, number in numbers.items()
        if number > own
    ]


def _counts(report: dict[str, Any]) -> str:
    sizes = report.get("samples")
    text = "does not disclose how many samples it has"
    if sizes:  # a site may disclose only some of them
        names = {"train": "training", "validation": "validation", "test": "test"}
        parts = (f"{sizes[part]} {name}" for part, name in names.items() if part in sizes)
        text = f"{', '.join(parts)} samples"
    missing = report.get("missing_classes")
    return text + (f"; has no {', '.join(missing)}" if missing else "")


def _warnings(checked: Checked) -> list[str]:
    """Differences between the sites: equal bytes need equal torch, packages and CPU capability."""
    nodes, reports = checked.nodes.values(), [answer.report for answer in checked.answers.values()]
    warnings = []
    for name, values in {
        "versions of fedelmy": {node.version for node in nodes},
        "versions of torch": {node.torch for node in nodes},
        "packages": {" and ".join(each.get("packages", [])) or "none" for each in reports if each},
        "CPU capabilities": {
            each["cpu_capability"] for each in reports if "cpu_capability" in each
        },
    }.items():
        if len(values) > 1:
            warnings.append(f"the sites have different {name}: {', '.join(sorted(values))}")
    older = sorted(node.site for node in nodes if not node.names_plans)
    if older:
        warnings.append(
            f"{', '.join(older)}: older software, which cannot tell runs of the same name apart;"
            " upgrade it, and until then use a new name for every run"
        )
    if checked.skewed:
        names = ", ".join(checked.skewed)
        warnings.append(f"the clocks of {names} differ from this machine's by more than 30 s")
    return warnings
