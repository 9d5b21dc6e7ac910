"""Following a run to its end: events into progress, progress onto a screen, and the result out of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click
from rich.console import Console

from fedelmy_launcher.control import Sites
from fedelmy_launcher.discovery import discover, reported_run
from fedelmy_launcher.listening import Lost, News, Streams
from fedelmy_launcher.live.alerts import alerts_of
from fedelmy_launcher.live.marks import marks_for
from fedelmy_launcher.live.screen import Screen
from fedelmy_launcher.live.table import site_table
from fedelmy_launcher.progress import RunProgress
from fedelmy_node.cli.frame import emit_json
from fedelmy_node.domain.events import Event, RunState
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.narration import bytes_text, percent
from fedelmy_node.errors import EXIT_SUBSET, ConsentError, FedelmyError, RunError

__all__ = ["follow_run", "show_result"]


def follow_run(sites: Sites, progress: RunProgress, screen: Screen, unmet: Iterable[SiteName] = ()) -> None:
    """Return when the run is over and has a result; raise when it failed, was aborted or was cancelled at a site.

    `unmet`: sites that have not reported yet; once they do, they may name sites that nobody knew.
    """
    _Follower(sites, progress, screen, unmet).follow()


class _Follower:
    def __init__(self, sites: Sites, progress: RunProgress, screen: Screen, unmet: Iterable[SiteName]) -> None:
        self._sites = sites
        self._progress = progress
        self._screen = screen
        self._streams: Final = Streams(sites, progress.run)
        self._unmet = set(unmet)
        self._open: set[SiteName] = set()
        self._lost: dict[SiteName, tuple[str, float]] = {}
        """Sites that do not answer: the code, and since when."""
        self._reported = 0
        """How many sites had ended when they were last asked for reports."""
        self._noted: set[SiteName] = set()

    def follow(self) -> None:
        names = [site for site, known in self._progress.sites.items() if not known.gone]
        try:
            with self._streams:
                self._look([site for site in names if site not in self._unmet])
                self._listen(names)
                while not self._is_over():
                    self._take(self._streams.next())
        except FedelmyError:
            self._ask()  # how the others stood when it ended so
            raise
        self._ask()

    def _look(self, names: Sequence[SiteName]) -> None:
        """What events do not tell: how the run stands, clocks, certificates and disks."""
        asked = time.time()
        nodes, _ = self._sites.describe(names)
        reports, _ = self._sites.reports(self._progress.run, list(nodes))
        self._progress.take(reports)
        found = alerts_of(self._sites.identity, nodes.values(), reports)
        with self._progress.lock:
            for site, node in nodes.items():
                self._progress.sites[site].clock_ahead_seconds = node.clock - (asked + time.time()) / 2
            new = [text for text in found if text not in self._progress.alerts]
            self._progress.alerts += new
        for text in new:
            self._screen.alert(text)

    def _listen(self, names: Iterable[SiteName]) -> None:
        for site in names:
            self._open.add(site)
            self._streams.listen(site)

    def _take(self, news: News) -> None:
        if isinstance(news, Event):
            if self._lost.pop(news.site, None):
                self._screen.note(f"{news.site} answers again")
            if news.site in self._unmet:
                self._meet(news.site)
            self._progress.add(news)
            self._screen.event(news)
        elif isinstance(news, Lost):
            self._lose(news.site, news.error.code, "still trying")
        elif news.error is None:
            self._lost.pop(news.site, None)
            # Only now: a run that was taken up again has an older failure among its events.
            _judge(self._progress, news.site)
            self._open.discard(news.site)
        elif news.error.code == "E-RUN-UNKNOWN" and self._may_be_lost(news.site):
            self._lose(news.site, news.error.code, "it has lost the run")
        else:
            raise news.error

    def _lose(self, site: SiteName, code: str, then: str) -> None:
        self._progress.sites[site].silent = True
        known, since = self._lost.get(site, ("", time.monotonic()))
        self._lost[site] = code, since
        if known != code:
            self._screen.note(f"{site} does not answer ({code}); {then}")

    def _may_be_lost(self, site: SiteName) -> bool:
        """Whether the plan says what the others do without this site."""
        absence = self._sites.absences.get(site)
        return absence is not None and absence.on_unreachable != "wait"

    def _meet(self, site: SiteName) -> None:
        """A site that was out of reach when the run was looked for may know more of it."""
        self._unmet.discard(site)
        reports, refusals = discover(self._sites, self._progress.run)
        known = {refusal.site for refusal in refusals}
        found = reported_run(self._progress.run, reports, self._progress.steps)
        new = self._progress.extend(found)
        self._listen(new)
        self._look([site for site in (site, *new) if site not in known])
        self._unmet |= known & self._open

    def _is_over(self) -> bool:
        """Whether it ended everywhere, or nothing is expected any more of those that do not answer."""
        if not self._open:
            return True
        ended = len(self._progress.sites) - len(self._open)
        if not self._open <= set(self._lost) or not ended:
            return False
        if ended != self._reported:
            self._reported = ended
            self._ask()
        if not all(self._is_dispensable(site) for site in self._open):
            return False
        for site in self._open:
            self._progress.sites[site].gone = True
        return True

    def _is_dispensable(self, site: SiteName) -> bool:
        if self._progress.is_over_without(site):
            return True
        if not self._progress.is_over_without(site, even_evaluation=True):
            return False
        if site not in self._noted:
            self._noted.add(site)
            self._screen.note(f"the run is done at all other sites; only {site} knows whether it evaluated the result")
        absence = self._sites.absences.get(site)
        silent_seconds = time.monotonic() - self._lost[site][1]
        return absence is not None and absence.on_unreachable == "skip" and silent_seconds >= absence.patience_seconds

    def _ask(self) -> None:
        """Whose work the result holds, and who was left out, is asked of the sites that answer."""
        answering = [site for site, known in self._progress.sites.items() if not known.gone and site not in self._lost]
        reports, _ = self._sites.reports(self._progress.run, answering)
        self._progress.take(reports)


def _judge(progress: RunProgress, site: SiteName) -> None:
    run, ended = progress.run, progress.sites[site]
    reason = ended.problem.partition(": ")[2] or ended.state
    if ended.state == RunState.CANCELLED and ended.problem.startswith("E-CONSENT-REFUSED"):
        raise ConsentError("E-CONSENT-REFUSED", reason)
    if ended.state == RunState.CANCELLED:
        raise RunError("E-RUN-CANCELLED", f"run {run} was cancelled")
    if ended.state == RunState.ABORTED:
        raise RunError("E-RUN-ABORTED", f"run {run} was aborted: {reason}")
    if ended.state == RunState.EXPIRED:
        raise RunError("E-RUN-EXPIRED", f"run {run} has expired at {site}: {reason}")
    if ended.state != RunState.DONE:
        raise RunError(
            "E-RUN-FAILED",
            f"run {run} failed at {site}: {ended.problem or ended.state}",
            hint=f"Correct the cause at {site}, then go on with --run {run}.",
        )


def _accuracy(progress: RunProgress, result: Mapping[str, Any]) -> str:
    """The run's accuracy, and on what it rests: a site may keep its counts to itself."""
    measured, holders = result["measured_at"], progress.outcome().holders
    silent = [site for site in holders if site not in measured and progress.sites[site].evaluation is not None]
    kept = f"{', '.join(silent)} did not disclose their counts" if silent else ""
    if not measured:
        return f"- ({kept or 'nothing was measured'})"
    whose = "all sites" if len(measured) == len(progress.sites) else ", ".join(measured)
    text = f"{percent(result['accuracy'])} of {result['samples']} test samples of {whose}"
    return f"{text}; {kept}" if kept else text


def show_result(progress: RunProgress, *, asked: bool = False, as_json: bool) -> int:
    """The result, for people or as the last line of JSON; the exit code says whether all sites are in it."""
    result = progress.result()
    code = EXIT_SUBSET if result["subset"] else 0
    if as_json:
        emit_json(result)
        return code
    console = Console()
    console.print(site_table(progress, f"run {progress.run}", marks_for(console.encoding)))
    outcome = progress.outcome()
    click.echo(f"accuracy      {_accuracy(progress, result)}")
    click.echo(f"model         {bytes_text(result['bundle_bytes'])}, sha256 {result['bundle_sha256']}")
    if result["subset"]:
        click.echo(f"holds         the work of {', '.join(outcome.contributors)}")
    for line in outcome.sentences():
        click.echo(line)
    for line in result["contradictions"]:
        click.echo(f"contradiction {line}")
    left_out = {left.site for left in outcome.left_out}
    for site in (site for site in result["unheard"] if site not in left_out):
        click.echo(f"unheard       {site}: whether it evaluated the result is not known")
    sent, delivered = bytes_text(result["bytes_sent"]), bytes_text(result["bytes_delivered"])
    click.echo(f"bytes sent    {sent} between sites, {delivered} to deliver the result")
    asking = ", asking the sites included" if asked else ""
    click.echo(f"time          {result['seconds']:.1f} s{asking}")
    return code
