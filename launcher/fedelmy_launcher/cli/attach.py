"""Follow a run on the screen: shared by `run`, `run --attach` and `status --watch`.

Attaching is read-only.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedelmy_node.domain.errors import EXIT_DETACHED, RunError
from fedelmy_node.domain.events import AHEAD, RunState

if TYPE_CHECKING:
    from fedelmy_launcher.control.sites import Answered, Refusal, Sites
    from fedelmy_launcher.view.progress import RunProgress
    from fedelmy_launcher.view.terminal.screen import Screen
    from fedelmy_node.domain.names import RunId, SiteName
    from fedelmy_node.domain.reports import PrepareAnswer, RunReport


def attach(sites: Sites, run: RunId, again: list[str], *, file: Path | None, as_json: bool) -> int:
    """Follow an existing run to its end; `again` is the command line that follows it again.

    `file` is the federation file, if one was named.
    """
    from fedelmy_launcher.control.find_run import reported_run
    from fedelmy_launcher.view.progress import RunProgress

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
    """Call `begin`, if any, then follow to the end; `again` follows it again."""
    from fedelmy_launcher.view.terminal.follow import follow_run, show_result
    from fedelmy_launcher.view.terminal.screen import open_screen

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
        news, rest = "Detached: the run continues. Follow", ""
        if not started:
            # Sites that have agreed keep the run until it is started, cancelled or expires.
            news = "Interrupted before the run was started. Start"
            rest = "\nor end it with `fedelmy-launch cancel`."
        click.echo(f"\n{news} it with\n  fedelmy-launch {shlex.join(again)}{rest}", err=True)
        return EXIT_DETACHED
    return show_result(progress, asked=begin is not None, as_json=as_json)


def show_answer(progress: RunProgress, screen: Screen) -> Answered:
    """Show the sites' answers to a new run one by one, as they come in."""
    from fedelmy_launcher.control.sites import Refusal

    def answered(site: SiteName, answer: PrepareAnswer | Refusal, seconds: float) -> None:
        with progress.lock:
            if isinstance(answer, Refusal):
                progress.sites[site].state, text = "refused", f"refused ({answer.error.code})"
            else:
                progress.sites[site].state, text = str(answer.state), "is ready"
            screen.note(f"{site} {text}, answered after {seconds:.0f} s")

    return answered


def _unstarted(run: RunId, reports: Iterable[RunReport], file: Path | None) -> str:
    """How to start a run that is only prepared; empty if it has started or ended anywhere."""
    states = [report.state for report in reports]
    if not set(states) <= set(AHEAD):
        return ""
    arguments = ["run", str(file) if file else "FEDERATION", "--run", run]
    command = f"fedelmy-launch {shlex.join(arguments)}"
    pending = states.count(RunState.PENDING)
    waits = f" ({pending} of {len(states)} sites are waiting for approval)" if pending else ""
    return f"run {run} is prepared but not started{waits}; start it with `{command}`"


def _find(
    sites: Sites, run: RunId
) -> tuple[dict[SiteName, RunReport], set[SiteName], set[SiteName]]:
    """The reports, the sites that do not answer, and those that do not know the run."""
    from fedelmy_launcher.control.find_run import discover
    from fedelmy_launcher.control.sites import ASK_AGAIN, OTHER_RUNS, refused

    reports, refusals = discover(sites, run)
    unknown = {refusal.site for refusal in refusals if refusal.error.code == "E-RUN-UNKNOWN"}
    others = [refusal for refusal in refusals if refusal.site not in unknown]
    if not reports:
        if not unknown:
            raise refused(refusals, ASK_AGAIN)
        message = f"run {run!r} not found at {', '.join(sorted(unknown))}"
        if others:
            message += f"; no answer from {', '.join(refusal.site for refusal in others)}"
        raise RunError("E-RUN-UNKNOWN", message, hint=OTHER_RUNS)
    return reports, {refusal.site for refusal in others}, unknown
