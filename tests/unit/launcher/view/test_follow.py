"""When a run is over for whoever follows it, although not everybody answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from fedelmy_launcher.control.event_streams import Lost, Streams
from fedelmy_launcher.control.find_run import discover, reported_run
from fedelmy_launcher.control.sites import Sites
from fedelmy_launcher.plans.compiler import compile_plan
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_launcher.view.terminal.follow import follow_run, show_result
from fedelmy_launcher.view.terminal.screen import open_screen
from fedelmy_node.domain.errors import EXIT_SUBSET, FedelmyError, PeerError, RunError
from fedelmy_node.domain.events import Event, EventKind, RunState
from fedelmy_node.domain.names import RunId, SiteName, StepId, run_id
from fedelmy_node.domain.reports import NodeDescription, RunReport
from fedelmy_node.rpc.clients import OperatorClient
from tests.support.federations import make_federation
from tests.support.run_reports import make_report, origin

RUN = run_id("run-1")
SKIP = {"on_unreachable": "skip", "patience_seconds": 1000.0}
DOWN = PeerError("E-PEER-UNREACHABLE", "nothing listens there")
WITHOUT_SOUTH = origin("train.1@north", without=("train.2@south", "deliver.1@south"))


class Told:
    """What one site would tell; in place of the network."""

    def __init__(
        self, events: list[Event], report: RunReport | None, then: FedelmyError | None = None
    ) -> None:
        self.events, self.known, self.then = events, report, then

    def watch(self, run: RunId, after: int) -> Iterator[Event]:
        yield from (event for event in self.events if event.seq > after)
        if self.then is not None:
            raise self.then

    def report(self, run: RunId) -> RunReport:
        if self.known is None:
            raise DOWN
        return self.known

    def describe(self) -> NodeDescription:
        raise DOWN

    def close(self) -> None:
        pass


class ToldSites(Sites):
    def __init__(self, told: dict[str, Told], **changes: Any) -> None:
        self.federation = make_federation(*told, **changes)
        super().__init__(self.federation, None)
        self.told = told

    def client(self, site: SiteName) -> OperatorClient:
        return cast(OperatorClient, self.told[site])

    def drop(self, site: SiteName) -> None:
        pass


def events(site: str, *entries: tuple[str | None, EventKind, dict[str, Any]]) -> list[Event]:
    return [
        Event(
            seq=seq,
            time=float(seq),
            run=RUN,
            site=SiteName(site),
            step=StepId(step) if step else None,
            kind=kind,
            data=data,
        )
        for seq, (step, kind, data) in enumerate(entries, start=1)
    ]


def run_state(state: str, **data: Any) -> tuple[None, EventKind, dict[str, Any]]:
    return None, EventKind.RUN, {"state": state, **data}


AROUND = (
    "train.1@north",
    EventKind.AROUND,
    {
        "edge": "e",
        "steps": ["deliver.1@south", "train.2@south"],
        "code": DOWN.code,
        "message": "out of reach for 5 s",
    },
)
DELIVERED = (
    "deliver.2@north",
    EventKind.STEP,
    {"state": "done", "sha256": "ab" * 32, "bytes": 70, "result": {}},
)


def follow(
    told: dict[str, Told], capsys: pytest.CaptureFixture[str], **changes: Any
) -> tuple[RunProgress, str]:
    sites = ToldSites(told, **changes)
    progress = RunProgress(compile_plan(sites.federation, RUN))
    with open_screen(progress, as_json=False) as screen:
        follow_run(sites, progress, screen)
    return progress, capsys.readouterr().out


def plan(**changes: Any) -> Any:
    return compile_plan(make_federation("north", "south", **changes), RUN)


def test_a_silent_site_that_was_skipped_keeps_nobody_waiting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = make_report(plan(absence=SKIP), "north", origin=WITHOUT_SOUTH)
    told = {
        "north": Told(
            events("north", run_state("running"), AROUND, DELIVERED, run_state("done")), report
        ),
        "south": Told(events("south", run_state("running")), None, DOWN),
    }
    progress, said = follow(told, capsys, absence=SKIP)
    assert "south does not answer" in said and "skipped deliver.1@south" in said
    assert show_result(progress, as_json=False) == EXIT_SUBSET
    said = capsys.readouterr().out
    assert (
        "skipped       south: its training is not in the result; was out of reach for 5 s (E-PEER-UNREACHABLE)"
        in said
    )
    assert "trained by    north" in said


def test_the_reports_say_what_no_event_did(capsys: pytest.CaptureFixture[str]) -> None:
    report = make_report(plan(absence=SKIP), "north", origin=WITHOUT_SOUTH)
    told = {
        "north": Told(events("north", DELIVERED, run_state("done")), report),
        "south": Told([], None, DOWN),
    }
    assert follow(told, capsys, absence=SKIP)[0].result()["subset"] is True


def test_a_site_that_only_owes_its_evaluation_is_given_its_patience(
    capsys: pytest.CaptureFixture[str],
) -> None:
    short = {"on_unreachable": "skip", "patience_seconds": 0.001}
    report = make_report(
        plan(absence=short), "north", origin=origin("train.1@north", "train.2@south")
    )
    told = {
        "north": Told(events("north", DELIVERED, run_state("done")), report),
        "south": Told(events("south", run_state("running")), None, DOWN),
    }
    progress, said = follow(told, capsys, absence=short)
    assert "only south knows whether it evaluated the result" in said
    result = progress.result()
    assert (result["subset"], result["unheard"], result["left_out"]) == (True, ["south"], [])
    assert result["contributors"] == ["north", "south"]


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("aborted", "E-RUN-ABORTED"),
        ("failed", "E-RUN-FAILED"),
        ("cancelled", "E-RUN-CANCELLED"),
        ("expired", "E-RUN-EXPIRED"),
    ],
)
def test_other_ends_are_told_at_once(
    capsys: pytest.CaptureFixture[str], state: str, code: str
) -> None:
    told = {
        "north": Told(
            events(
                "north", run_state(state, code="E-RUN-ABORTED", message="south was out of reach")
            ),
            None,
        ),
        "south": Told([], None, DOWN),
    }
    with pytest.raises(RunError) as raised:
        follow(told, capsys)
    assert (raised.value.code, raised.value.exit_code) == (code, 10)
    assert state == "cancelled" or "south was out of reach" in raised.value.message
    if state == "failed":  # a trainer's output is only there
        assert "details.log" in raised.value.hint and "runs show run-1" in raised.value.hint


def test_a_node_that_shuts_down_has_not_failed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedelmy_launcher.control.event_streams._RETRY_SECONDS", 0.0)

    class Restarted(Told):
        """Its stream ends in good order while the run goes on; its successor tells the rest."""

        def watch(self, run: RunId, after: int) -> Iterator[Event]:
            yield self.events[after]

    both = origin("train.1@north", "train.2@south")
    told = {
        "north": Restarted(events("north", run_state("running"), run_state("done")), None),
        "south": Told(events("south", run_state("done")), None),
    }
    for site, known in told.items():
        known.known = make_report(plan(), site, RunState.DONE, origin=both)
    progress, said = follow(told, capsys)
    assert progress.is_done and "north answers again" in said


def test_a_site_that_lost_the_run_is_the_end_if_nothing_leads_around_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lost = RunError("E-RUN-UNKNOWN", "run 'run-1' not found at site south")
    told = {
        "north": Told(events("north", run_state("running")), None, DOWN),
        "south": Told([], None, lost),
    }
    with pytest.raises(RunError, match="E-RUN-UNKNOWN"):
        follow(told, capsys)


def test_a_site_that_nobody_understands_is_not_asked_for_ever(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedelmy_launcher.control.event_streams._RETRY_SECONDS", 0.0)
    strange = PeerError("E-PEER-PROTOCOL", "south: the answer does not fit")
    told = {
        "north": Told(events("north", run_state("running")), None, DOWN),
        "south": Told([], None, strange),
    }
    with pytest.raises(PeerError, match="E-PEER-PROTOCOL"):
        follow(told, capsys)


def test_a_site_that_is_back_names_sites_that_nobody_knew(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedelmy_launcher.control.event_streams._RETRY_SECONDS", 0.0)
    federation = make_federation("north", "south", "west")
    whole, names = compile_plan(federation, RUN), ("north", "south", "west")
    everybody = origin("train.1@north", "train.2@south", "train.3@west")
    told = {
        name: Told(events(name, run_state("done")), make_report(whole, name, origin=everybody))
        for name in names
    }
    sites = ToldSites(told)
    for name in names[1:]:
        del sites.addresses[SiteName(name)]
    south = told["south"].known
    told["south"].known = None
    reports, refusals = discover(sites, RUN)
    assert (list(reports), [refusal.site for refusal in refusals]) == (["north"], ["south"])
    progress = RunProgress(reported_run(RUN, reports), began_before=True)
    assert "west" not in sites.addresses
    told["south"].known = south
    with open_screen(progress, as_json=False) as screen:
        follow_run(sites, progress, screen, {SiteName("south")})
    assert list(progress.sites) == list(names) and progress.is_done
    assert progress.result()["contributors"] == list(names)


@pytest.mark.parametrize("change", [{"site": "west"}, {"run": "other"}, {"step": "train.1@west"}])
def test_a_site_speaks_only_of_itself(change: dict[str, Any]) -> None:
    """Otherwise one site could end, or fail, another one's part on the operator's screen."""
    event = replace(events("north", run_state("running"))[0], **change)
    with (
        ToldSites({"north": Told([event], None)}) as sites,
        Streams(sites, RunId("run-1")) as streams,
    ):
        streams.listen(SiteName("north"))
        news = streams.next()
    assert isinstance(news, Lost) and news.error.code == "E-PEER-PROTOCOL"


def test_a_report_about_another_site_is_refused() -> None:
    with ToldSites({"north": Told([], make_report(plan(), "south"))}) as sites:
        reports, refusals = sites.reports(RunId("run-1"))
    assert reports == {} and [refusal.error.code for refusal in refusals] == ["E-PEER-PROTOCOL"]
