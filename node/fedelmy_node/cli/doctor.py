"""`fedelmy-node doctor`: check this site before a run, and suggest fixes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from fedelmy_node.cli.app import emit_json
from fedelmy_node.cli.options import (
    config_option,
    insecure_options,
    json_option,
    site_options,
    state_option,
)


@click.command()
@site_options
@click.option(
    "--federation",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="federation.toml with classes, model and training.  [default: as in the newest run]",
)
@state_option
@config_option
@insecure_options
@json_option
def doctor(federation: Path | None, as_json: bool, **options: Any) -> int:
    """Check everything that this site needs for a run; nothing is changed.

    Checks identity, clock, port, the --advertise address, the connection to every --peer, disk,
    data and device. It has the options of `serve`, with the same precedence, and works with and
    without a running daemon. With --federation, it compares the data with the federation's classes,
    trains a few batches, and estimates the time of the whole run.

    Every line is ok, a warning or a failure; warnings and failures come with a code and a fix.

    Exit code 0: no failure; otherwise that of the first failure.

    \b
    Examples:
      fedelmy-node doctor --peer south.example:50051
      fedelmy-node doctor --data imagefolder:/data/xray --federation federation.toml
      fedelmy-node doctor --json
    """
    from fedelmy_node.cli.finding_lines import finding_json, finding_lines, summary_line
    from fedelmy_node.cli.progress_line import ProgressLine
    from fedelmy_node.config.federation_file import read_federation
    from fedelmy_node.config.site_file import Given, load_site_config
    from fedelmy_node.domain.reports import exit_code_of, worst
    from fedelmy_node.ops.doctor.site_checks import UNLISTED, SiteExamination

    logging.getLogger().addHandler(logging.NullHandler())  # the findings say everything
    described = read_federation(federation, unlisted=UNLISTED) if federation else None
    examination = SiteExamination(load_site_config(Given(**options)), described)
    findings = []
    subject = ""
    with ProgressLine(quiet=as_json) as progress:
        for finding in examination.findings(progress.show):
            findings.append(finding)
            if as_json:
                continue
            progress.clear()
            if finding.subject != subject:
                subject = finding.subject
                click.secho(subject, bold=True)
            for line in finding_lines(finding):
                click.echo(line)
    if as_json:
        emit_json({"verdict": worst(findings), "findings": list(map(finding_json, findings))})
    else:
        click.echo(summary_line(findings))
    return exit_code_of(findings)
