"""`fedelmy-node health`: a health probe for people, containers and systemd."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedelmy_node.cli.app import emit_json
from fedelmy_node.cli.options import json_option, state_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedelmy_node.domain.reports import Health


_SERVICES = ("control", "peer", "relay", "transfer")


@click.command()
@click.option(
    "--service",
    type=click.Choice(_SERVICES),
    help="Check only this service: use control for liveness probes, and omit it for readiness probes.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing; use the exit code.")
@state_option
@json_option
def health(service: str | None, quiet: bool, state: Path, as_json: bool) -> int:
    """Ask the daemon of this state directory whether it is healthy.

    The node is healthy if all its services work: control (operators), peer (neighbours), relay
    (sites that cannot be called) and transfer (bundles, which need disk space). Warnings do not
    count: a certificate that expires soon, a run that needs approval, low disk space, missing data.

    Exit code 0: healthy; 1: it answers, but is not healthy; 7: no daemon answers.

    \b
    Examples:
      fedelmy-node health
      fedelmy-node health --json
      fedelmy-node health --quiet --service control
    """
    from fedelmy_node.config.decode import encode
    from fedelmy_node.rpc.clients import admin_client

    with admin_client(state) as client:
        found = client.health()
    if as_json:
        emit_json(encode(found))
    elif not quiet:
        for line in health_lines(found):
            click.echo(line)
    named = [each for each in found.services if each.name.lower().endswith(f".{service}")]
    return 0 if (all(each.serving for each in named) if named else found.serving) else 1


def health_lines(found: Health) -> Iterator[str]:
    from fedelmy_node.domain.text import bytes_text

    state = "serving" if found.serving else "not serving"
    outside = f", advertised as {found.advertise}" if found.advertise else ""
    yield f"site {found.site} is {state} on {found.address}{outside} (process {found.process})"
    yield f"  now:      {found.active or 'idle'}"
    for waiting in found.queue:
        yield f"  queued:   {waiting}"
    if found.total_bytes:
        yield f"  disk:     {bytes_text(found.free_bytes)} of {bytes_text(found.total_bytes)} free"
    if found.metrics:
        yield f"  metrics:  http://{found.metrics}/metrics"
    for service in found.services:
        if service.name and not service.serving:
            yield f"  {service.name.rpartition('.')[2].lower():<9} does not work"
    for problem in found.problems:
        yield f"  problem:  {problem}"
    for warning in found.warnings:
        yield f"  warning:  {warning}"
