"""`fedelmy-node doctor`: everything that could keep this site from taking part, each with its fix."""

from __future__ import annotations

from pathlib import Path

import click

from fedelmy_node.cli.frame import emit_json
from fedelmy_node.cli.options import config_option, insecure_options, json_option, site_options, state_option

__all__ = ["doctor"]


@click.command()
@site_options
@click.option(
    "--federation",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="federation.toml, as the operator sends it: classes, model and training.  [default: as in the newest run]",
)
@state_option
@config_option
@insecure_options
@json_option
def doctor(
    peers: tuple[str, ...], data: str | None, indices: Path | None, listen: str | None, advertise: str | None,
    device: str | None, federation: Path | None, state: Path, config: Path | None, insecure: bool, site: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Look at everything that this site needs for a run, and change nothing.

    Identity, clock, port, whether --advertise leads back here, the way to every --peer, disk, data and device; takes
    the options of `serve`, with the same precedence, and works with and without a running daemon. With --federation,
    the data are held against its classes, a few batches are trained, and the time of the whole run is estimated.

    Every line is ok, a warning or a failure; below anything but ok is the code and what to do about it.
    Exit code 0: no failure; else that of the first one.

    \b
    Examples:
      fedelmy-node doctor --peer south.example:50051
      fedelmy-node doctor --data imagefolder:/data/xray --federation federation.toml
      fedelmy-node doctor --json
    """
    from fedelmy_node.cli.findings import finding_json, finding_lines, summary_line
    from fedelmy_node.cli.patience import Patience
    from fedelmy_node.config.federation_file import read_federation
    from fedelmy_node.config.site import Given, load_site_config
    from fedelmy_node.daemon.examination.site import UNLISTED, SiteExamination
    from fedelmy_node.domain.findings import exit_code_of, worst

    given = Given(
        state=state, config=config, site=site, listen=listen, advertise=advertise, peers=peers, data=data,
        indices=indices, device=device, insecure=insecure,
    )  # fmt: skip
    described = read_federation(federation, unlisted=UNLISTED) if federation else None
    examination = SiteExamination(load_site_config(given), described)
    findings = []
    subject = ""
    with Patience(quiet=as_json) as patience:
        for finding in examination.findings(patience.doing):
            findings.append(finding)
            if as_json:
                continue
            patience.over()
            if finding.subject != subject:
                subject = finding.subject
                click.secho(subject, bold=True)
            for line in finding_lines(finding):
                click.echo(line)
    if as_json:
        emit_json({"verdict": worst(findings), "findings": [finding_json(finding) for finding in findings]})
    else:
        click.echo(summary_line(findings))
    return exit_code_of(findings)
