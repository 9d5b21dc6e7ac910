"""Following a run to its end: events into progress, progress onto a screen, and the result out of it."""

from __future__ import annotations

import click
from rich.console import Console

from fedelmy_launcher.control import Ended, Lost, Sites, follow
from fedelmy_launcher.progress import RunProgress
from fedelmy_launcher.screen import Screen, site_table
from fedelmy_node.cli.frame import emit_json
from fedelmy_node.domain.events import RunState
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.narration import bytes_text, percent
from fedelmy_node.errors import RunError

__all__ = ["follow_run", "show_result"]


def follow_run(sites: Sites, progress: RunProgress, screen: Screen) -> None:
    """Return when the run is done at every site; raise when it failed or was cancelled at one."""
    lost: dict[str, str] = {}
    for item in follow(sites, progress.plan):
        if isinstance(item, Ended):
            if item.error is not None:
                raise item.error
            # Only now: a run that was taken up again has an older failure among its events.
            _judge(progress, item.site)
        elif isinstance(item, Lost):
            progress.sites[item.site].silent = True
            if lost.get(item.site) != item.error.code:
                lost[item.site] = item.error.code
                screen.note(f"{item.site} does not answer ({item.error.code}); still trying")
        else:
            if lost.pop(item.site, None):
                screen.note(f"{item.site} answers again")
            progress.add(item)
            screen.event(item)


def _judge(progress: RunProgress, site: SiteName) -> None:
    run, ended = progress.plan.run, progress.sites[site]
    if ended.state == RunState.CANCELLED:
        raise RunError("E-RUN-CANCELLED", f"run {run} was cancelled")
    if ended.state != RunState.DONE:
        raise RunError(
            "E-RUN-FAILED",
            f"run {run} failed at {site}: {ended.problem or ended.state}",
            hint=f"Correct the cause at {site}, then go on with --run {run}.",
        )


def show_result(progress: RunProgress, *, as_json: bool) -> int:
    """The result, for people or as the last line of JSON; the exit code says whether it is one."""
    result = progress.result()
    if as_json:
        emit_json(result)
        return 0
    Console().print(site_table(progress, f"run {progress.plan.run}"))
    click.echo(f"accuracy      {percent(result['accuracy'])} of {result['samples']} test samples of all sites")
    click.echo(f"model         {bytes_text(result['bundle_bytes'])}, sha256 {result['bundle_sha256']}")
    sent, delivered = bytes_text(result["bytes_sent"]), bytes_text(result["bytes_delivered"])
    click.echo(f"bytes sent    {sent} between sites, {delivered} to deliver the result")
    click.echo(f"time          {result['seconds']:.1f} s")
    return 0
