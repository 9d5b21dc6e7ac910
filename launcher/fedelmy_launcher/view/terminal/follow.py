"""Follow a run to its end and print the result."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click
from rich.console import Console

from fedelmy_launcher.control.event_streams import Lost, News, Streams
from fedelmy_launcher.control.find_run import discover, reported_run
from fedelmy_launcher.control.sites import Sites
from fedelmy_launcher.view.glyphs import marks_for
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_launcher.view.terminal.screen import Screen
from fedelmy_launcher.view.terminal.site_table import site_table
from fedelmy_launcher.view.terminal.snapshot import alerts_of
from fedelmy_node.cli.app import emit_json
from fedelmy_node.domain.errors import EXIT_SUBSET, ConsentError, FedelmyError, RunError
from fedelmy_node.domain.events import Event, RunState
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.text import bytes_text, percent


def follow_run(
    sites: Sites, progress: RunProgress, screen: Screen, unmet: Iterable[SiteName] = ()
) -> None:
    """Return when the run has a result; raise if it failed, was aborted or cancelled at a site.

    `unmet`: sites that have not reported yet, and may name further sites.
    """
    _Follower(sites, progress, screen, unmet).follow()


class _Follower:
    def __init__(
        self, sites: Sites, progress: RunProgress, screen: Screen, unmet: Iterable[SiteName]
    ) -> None:
        self._sites = sites
        self._progress = progress
        self._screen = screen
        self._streams: Final = Streams(sites, progress.run)
        self._unmet = set(unmet)
        self._open: set[SiteName] = set()
        self._lost: dict[SiteName, tuple[str, float]] = {}
        """Silent sites: error code and time of the first failure."""
        self._reported = 0
        """Number of ended sites at the last request for reports."""
        self._noted: set[SiteName] = set()

    def follow(self) -> None:
        names = [site for site, known in self._progress.sites.items() if not known.gone]
        try:
            with self._streams:
                self._inspect([site for site in names if site not in self._unmet])
                self._listen(names)
                while not self._is_over():
                    self._take(self._streams.next())
        except FedelmyError:
            self._refresh()  # the final state of the other sites
            raise
        self._refresh()

    def _inspect(self, names: Sequence[SiteName]) -> None:
        """Ask for what events do not carry: state, clocks, certificates and disk space."""
        asked = time.time()
        nodes, _ = self._sites.describe(names)
        reports, _ = self._sites.reports(self._progress.run, list(nodes))
        self._progress.take(reports)
        found = alerts_of(self._sites.identity, nodes.values(), reports)
        with self._progress.lock:
            clock = (asked + time.time()) / 2
            for site, node in nodes.items():
                self._progress.sites[site].clock_ahead_seconds = node.clock - clock
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
            code = news.error.code
            self._lose(news.site, code, f"does not answer ({code}); still trying")
        elif news.error is None:
            self._lost.pop(news.site, None)
            # Only at the end: a resumed run has an older failure among its events.
            _judge(self._progress, news.site)
            self._open.discard(news.site)
        elif news.error.code == "E-RUN-UNKNOWN" and self._may_be_lost(news.site):
            code = news.error.code
            self._lose(news.site, code, f"no longer has a record of the run ({code})")
        else:
            raise news.error

    def _lose(self, site: SiteName, code: str, text: str) -> None:
        self._progress.sites[site].silent = True
        known, since = self._lost.get(site, ("", time.monotonic()))
        self._lost[site] = code, since
        if known != code:
            self._screen.note(f"{site} {text}")

    def _may_be_lost(self, site: SiteName) -> bool:
        """Whether the plan says how to continue without this site."""
        absence = self._sites.absences.get(site)
        return absence is not None and absence.on_unreachable != "wait"

    def _meet(self, site: SiteName) -> None:
        """Ask a site that was unreachable at first: it may know more of the run."""
        self._unmet.discard(site)
        reports, refusals = discover(self._sites, self._progress.run)
        known = {refusal.site for refusal in refusals}
        found = reported_run(self._progress.run, reports, self._progress.outline)
        new = self._progress.extend(found)
        self._listen(new)
        self._inspect([site for site in (site, *new) if site not in known])
        self._unmet |= known & self._open

    def _is_over(self) -> bool:
        """Whether the run ended everywhere, or nothing more is expected of the silent sites."""
        if not self._open:
            return True
        ended = len(self._progress.sites) - len(self._open)
        if not self._open <= set(self._lost) or not ended:
            return False
        if ended != self._reported:
            self._reported = ended
            self._refresh()
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
            others = "the run is done at all other sites"
            self._screen.note(f"{others}; only {site} knows whether it evaluated the result")
        absence = self._sites.absences.get(site)
        if absence is None or absence.on_unreachable != "skip":
            return False
        return time.monotonic() - self._lost[site][1] >= absence.patience_seconds

    def _refresh(self) -> None:
        """Ask the answering sites who contributed to the result and who was skipped."""
        present = [site for site, known in self._progress.sites.items() if not known.gone]
        answering = [site for site in present if site not in self._lost]
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
        message = f"run {run} failed at {site}: {ended.problem or ended.state}"
        hint = (
            f"`fedelmy-node runs show {run}` and details.log at {site} show the cause."
            f" Fix it, then continue with --run {run}."
        )
        raise RunError("E-RUN-FAILED", message, hint=hint)


def _accuracy(progress: RunProgress, result: Mapping[str, Any]) -> str:
    """The run's accuracy and the sites that it includes: some may not disclose their counts."""
    measured = result["measured_at"]
    others = [site for site in progress.outcome().holders if site not in measured]
    silent = [site for site in others if progress.sites[site].evaluation is not None]
    kept = f"{', '.join(silent)} did not disclose their counts" if silent else ""
    if not measured:
        return f"- ({kept or 'nothing was measured'})"
    whose = "all sites" if len(measured) == len(progress.sites) else ", ".join(measured)
    text = f"{percent(result['accuracy'])} on {result['samples']} test samples of {whose}"
    return f"{text}; {kept}" if kept else text


def show_result(progress: RunProgress, *, asked: bool = False, as_json: bool) -> int:
    """Print the result as a table or JSON; return the exit code, `EXIT_SUBSET` for a subset."""
    result = progress.result()
    code = EXIT_SUBSET if result["subset"] else 0
    if as_json:
        emit_json(result)
        return code
    console = Console()
    console.print(site_table(progress, f"run {progress.run}", marks_for(console.encoding)))
    outcome = progress.outcome()
    click.echo(f"accuracy      {_accuracy(progress, result)}")
    size = bytes_text(result["bundle_bytes"])
    click.echo(f"model         {size}, sha256 {result['bundle_sha256']}")
    if result["subset"]:
        click.echo(f"trained by    {', '.join(outcome.contributors)}")
    for line in outcome.sentences():
        click.echo(line)
    for line in result["contradictions"]:
        click.echo(f"contradiction {line}")
    left_out = {left.site for left in outcome.left_out}
    for site in (site for site in result["unheard"] if site not in left_out):
        click.echo(f"no answer     {site}: whether it evaluated the result is unknown")
    sent, delivered = bytes_text(result["bytes_sent"]), bytes_text(result["bytes_delivered"])
    click.echo(f"bytes sent    {sent} between sites, {delivered} to deliver the result")
    asking = ", including asking the sites" if asked else ""
    click.echo(f"time          {result['seconds']:.1f} s{asking}")
    return code
