"""Following a run on the screen: the one way of `run`, `run --attach` and `status --watch`.

Whoever attaches prepares, starts, ends and changes nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedelmy_node.domain.events import AHEAD, RunState
from fedelmy_node.errors import EXIT_DETACHED, RunError

if TYPE_CHECKING:
    from fedelmy_launcher.control import Sites
    from fedelmy_launcher.live.screen import Screen
    from fedelmy_launcher.progress import RunProgress
    from fedelmy_node.domain.names import RunId, SiteName
    from fedelmy_node.domain.reports import RunReport

__all__ = ["attach", "follow"]


def attach(sites: Sites, run: RunId, again: list[str], *, file: Path | None, as_json: bool) -> int:
    """Follow a run that exists to its end, whatever its state; `again` are the arguments that follow it again.

    `file` is the federation file, if one was named.
    """
    from fedelmy_launcher.discovery import reported_run
    from fedelmy_launcher.progress import RunProgress

    reports, silent, forgotten = _find(sites, run)
    progress = RunProgress(reported_run(run, reports), began_before=True)
    if not as_json:
        click.echo(f"run {run}: {len(progress.sites)} sites")
    for site in forgotten & set(progress.sites):
        progress.sites[site].state, progress.sites[site].gone = "unknown", True
    for site in silent & set(progress.sites):
        progress.sites[site].silent = True
    hint = _unstarted(run, reports.values(), file)
    return follow(sites, progress, again, unmet=silent, hint=hint, as_json=as_json)


def follow(
    sites: Sites,
    progress: RunProgress,
    again: list[str],
    begin: Callable[[Screen], None] | None = None,
    *,
    unmet: Iterable[SiteName] = (),
    hint: str = "",
    as_json: bool,
) -> int:
    """Begin, if there is something to begin, then follow to the end; `again` follows it again."""
    from fedelmy_launcher.following import follow_run, show_result
    from fedelmy_launcher.live.screen import open_screen

    started = False
    try:
        with open_screen(progress, as_json=as_json) as screen:
            if begin is not None:
                begin(screen)
            started = True
            if hint:
                screen.note(hint)
            follow_run(sites, progress, screen, unmet)
    except KeyboardInterrupt:
        news = "Detached: the run goes on. Follow" if started else "Interrupted before the run was started. Start"
        # Sites that have agreed already keep it, and `status` shows it, until it is started, cancelled or expires.
        rest = "" if started else "\nor, if it is not wanted any more, `fedelmy-launch cancel`."
        click.echo(f"\n{news} it with\n  fedelmy-launch {shlex.join(again)}{rest}", err=True)
        return EXIT_DETACHED
    return show_result(progress, asked=begin is not None, as_json=as_json)


def _unstarted(run: RunId, reports: Iterable[RunReport], file: Path | None) -> str:
    """What to do about a run that nobody has started; empty if it has begun or ended anywhere."""
    states = [report.state for report in reports]
    if not set(states) <= set(AHEAD):
        return ""
    command = f"fedelmy-launch {shlex.join(['run', str(file) if file else 'FEDERATION', '--run', run])}"
    pending = states.count(RunState.PENDING)
    waits = f" ({pending} of {len(states)} sites wait for their administrators)" if pending else ""
    return f"run {run} is prepared, but was not started{waits}; start it with `{command}`"


def _find(sites: Sites, run: RunId) -> tuple[dict[SiteName, RunReport], set[SiteName], set[SiteName]]:
    """Who reports the run, who does not answer, and who does not know it; somebody must know it."""
    from fedelmy_launcher.control import ASK_AGAIN, OTHER_RUNS, refused
    from fedelmy_launcher.discovery import discover

    reports, refusals = discover(sites, run)
    unknown = {refusal.site for refusal in refusals if refusal.error.code == "E-RUN-UNKNOWN"}
    others = [refusal for refusal in refusals if refusal.site not in unknown]
    if not reports:
        if not unknown:
            raise refused(refusals, ASK_AGAIN)
        unheard = f"; no answer from {', '.join(refusal.site for refusal in others)}" if others else ""
        raise RunError("E-RUN-UNKNOWN", f"{', '.join(sorted(unknown))} know no run {run!r}{unheard}", hint=OTHER_RUNS)
    return reports, {refusal.site for refusal in others}, unknown
