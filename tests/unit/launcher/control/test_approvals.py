"""The launcher waits for administrators: what it says meanwhile, and how the waiting ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from fedelmy_launcher.control.approvals import await_approvals
from fedelmy_launcher.control.sites import Sites
from fedelmy_node.domain.errors import ConsentError, RunError
from fedelmy_node.domain.events import Event, EventKind, RunState
from fedelmy_node.domain.names import RunId, SiteName, run_id
from fedelmy_node.domain.reports import RunReport, Signed
from fedelmy_node.rpc.clients import OperatorClient
from tests.support.federations import make_federation, make_plan
from tests.support.run_reports import make_report

RUN = run_id("run-1")


class Node:
    """What one site would tell; in place of the network. Its stream ends if the run has."""

    def __init__(self, *told: dict[str, Any], last_event: int = 10) -> None:
        self.told, self.last_event = told, last_event
        self.withdrawn: list[Signed] = []
        self.dropped = threading.Event()
        self.after: int | None = None
        self.site = SiteName("")

    def watch(self, run: RunId, after: int) -> Iterator[Event]:
        self.after = after
        for seq, data in enumerate(self.told, start=after + 1):
            yield Event(
                seq=seq, time=1.0, run=RUN, site=self.site, step=None, kind=EventKind.RUN, data=data
            )
        if not self.told or not RunState(self.told[-1]["state"]).is_final:
            self.dropped.wait()  # nothing more happens

    def cancel(self, signed: Signed) -> RunState:
        self.withdrawn.append(signed)
        return RunState.CANCELLED

    def close(self) -> None:
        pass


class Nodes(Sites):
    def __init__(self, **nodes: Node) -> None:
        super().__init__(make_federation(*nodes), None)
        self.nodes = nodes
        for name, node in nodes.items():
            node.site = SiteName(name)

    def client(self, site: SiteName) -> OperatorClient:
        return cast(OperatorClient, self.nodes[site])

    def drop(self, site: SiteName) -> None:
        self.nodes[site].dropped.set()


def reports(**states: RunState) -> dict[SiteName, RunReport]:
    plan = make_plan(*states)
    return {
        SiteName(name): make_report(plan, name, state, last_event=10)
        for name, state in states.items()
    }


def wait(nodes: Nodes, **states: RunState) -> list[tuple[str, str, str]]:
    told: list[tuple[str, str, str]] = []
    await_approvals(nodes, RUN, reports(**states), lambda *news: told.append(news))
    return told


def test_nobody_is_waited_for() -> None:
    assert (
        wait(Nodes(north=Node(), south=Node()), north=RunState.PREPARED, south=RunState.RUNNING)
        == []
    )


def test_all_have_approved() -> None:
    nodes = Nodes(north=Node({"state": "prepared"}), south=Node({"state": "prepared"}))
    told = wait(nodes, north=RunState.PENDING, south=RunState.PENDING)
    assert told[:2] == [
        (
            "north",
            "pending",
            "waiting for the administrator of north: fedelmy-node runs approve run-1",
        ),
        (
            "south",
            "pending",
            "waiting for the administrator of south: fedelmy-node runs approve run-1",
        ),
    ]
    assert {news for _, _, news in told[2:]} == {"north has approved", "south has approved"}
    assert nodes.nodes["north"].after == 10, "an older life of the run is not heard again"


def test_one_refuses_and_the_others_are_told() -> None:
    refusal = {
        "state": "cancelled",
        "code": "E-CONSENT-REFUSED",
        "message": "the administrator of south refused: no",
    }
    nodes = Nodes(north=Node(), south=Node(refusal))
    with pytest.raises(ConsentError, match=r"E-CONSENT-REFUSED.*refused: no"):
        wait(nodes, north=RunState.PREPARED, south=RunState.PENDING)
    assert len(nodes.nodes["north"].withdrawn) == 1 and not nodes.nodes["south"].withdrawn
    assert b'"withdraw":true' in nodes.nodes["north"].withdrawn[0].payload


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ({"state": "cancelled", "message": "enough"}, "E-RUN-CANCELLED"),
        (
            {"state": "expired", "code": "E-CONSENT-APPROVAL", "message": "nobody decided"},
            "E-RUN-EXPIRED",
        ),
        (
            {"state": "aborted", "code": "E-RUN-ABORTED", "message": "west was out of reach"},
            "E-RUN-ABORTED",
        ),
    ],
)
def test_it_ends_meanwhile_somewhere(ends: dict[str, Any], code: str) -> None:
    with pytest.raises(RunError, match=code):
        wait(Nodes(north=Node(ends), south=Node()), north=RunState.PREPARED, south=RunState.PENDING)
