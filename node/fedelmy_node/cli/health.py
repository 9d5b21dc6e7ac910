"""`fedelmy-node health`: a probe for people, containers and systemd."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedelmy_node.cli.frame import emit_json
from fedelmy_node.cli.options import json_option, state_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedelmy_node.domain.reports import Health

__all__ = ["health", "health_lines"]

_SERVICES = ("control", "peer", "relay", "transfer")


@click.command()
@click.option(
    "--service",
    type=click.Choice(_SERVICES),
    help="Only this service decides the exit code: control for a liveness probe. A readiness probe needs all of them.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing; only the exit code speaks.")
@state_option
@json_option
def health(service: str | None, quiet: bool, state: Path, as_json: bool) -> int:
    """Ask the daemon of this state directory whether it is well.

    The node is well if all its services work: control (operators), peer (neighbours), relay (sites that cannot be
    called) and transfer (bundles, which need room on the disk). Warnings do not count: a certificate that expires soon,
    a run that waits for you, little disk, data that are not there.

    Exit code 0: it is well; 1: it answers, but is not; 7: nothing answers.

    \b
    Examples:
      fedelmy-node health
      fedelmy-node health --json
      fedelmy-node health --quiet --service control
    """
    from fedelmy_node.config.decode import encode
    from fedelmy_node.rpc.admin import admin_client

    with admin_client(state) as client:
        found = client.health()
    if as_json:
        emit_json(encode(found))
    elif not quiet:
        for line in health_lines(found):
            click.echo(line)
    asked = [each for each in found.services if each.name.lower().endswith(f".{service}")] if service else []
    return 0 if (all(each.serving for each in asked) if asked else found.serving) else 1


def health_lines(found: Health) -> Iterator[str]:
    """A node's health, for people."""
    from fedelmy_node.domain.narration import bytes_text

    state = "serving" if found.serving else "not serving"
    outside = f", for others at {found.advertise}" if found.advertise else ""
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
