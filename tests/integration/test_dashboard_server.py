"""The dashboard's server without sites: how many may listen, rude callers, hostile texts in a
browser.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from fedelmy_launcher.control.find_run import ReportedRun, ReportedStep
from fedelmy_launcher.control.sites import Sites
from fedelmy_launcher.view.dashboard.board import Board, Watched
from fedelmy_launcher.view.dashboard.follower import Follower
from fedelmy_launcher.view.dashboard.http import DashboardServer
from fedelmy_launcher.view.dashboard.painter import Painter
from fedelmy_launcher.view.history.fold import RunHistory
from fedelmy_node.domain.events import Event, EventKind
from fedelmy_node.domain.names import RunId, SiteName, StepId
from fedelmy_node.domain.step_traits import TRAIN
from tests.support.browser import Visit, browser

TOKEN = "a-token-for-tests"
EVIL = """<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'"&lt;"""
SAYS = {"peer": EVIL, "code": EVIL, "message": EVIL}
RUN, NORTH, STEP = RunId("hostile"), SiteName("north"), StepId("train.1@north")


@contextmanager
def served(board: Board) -> Iterator[DashboardServer]:
    server = DashboardServer(board, 0, TOKEN)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    board.start()
    try:
        yield server
    finally:
        server.shutdown()
        board.close()
        server.server_close()
        thread.join()


@pytest.fixture
def server() -> Iterator[DashboardServer]:
    with served(Board(Sites(None, None), None)) as made:
        yield made


def listen(server: DashboardServer) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request("GET", f"/{TOKEN}/events")
    return connection, connection.getresponse()


def test_the_number_of_pages_is_bounded_and_a_place_is_given_back(server: DashboardServer) -> None:
    with ExitStack() as stack:
        for _ in range(32):
            connection, answer = listen(server)
            stack.callback(connection.close)
            stack.callback(answer.close)
            assert answer.status == 200
        connection, answer = listen(server)
        assert answer.status == 503 and b"close one of them" in answer.read()
        connection.close()
    for _ in range(100):  # a page that went away is noticed at the next word to it
        connection, answer = listen(server)
        status = answer.status
        answer.close()
        connection.close()
        if status == 200:
            return
        with server.board.changed:
            server.board.version += 1
            server.board.changed.notify_all()
            server.board.changed.wait(0.1)
    raise AssertionError("no place was given back")


def test_a_stream_ends_with_the_dashboard(server: DashboardServer) -> None:
    connection, answer = listen(server)
    assert answer.readline() == b"event: hello\n"
    server.board.close()
    assert answer.read() is not None
    connection.close()


@pytest.mark.parametrize(
    "request_line",
    [
        "NONSENSE",
        "GET",
        "GET / HTTP/9.9",
        "GET http://evil/ HTTP/1.1",
        "GET http://[evil HTTP/1.1",
        "POST / HTTP/1.1",
    ],
)
def test_what_is_no_request_is_refused_in_plain_words(
    server: DashboardServer, request_line: str
) -> None:
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=60) as caller:
        caller.sendall(f"{request_line}\r\nHost: localhost\r\n\r\n".encode())
        answer = b"".join(iter(lambda: caller.recv(65536), b""))
    head = answer.splitlines()[0]
    assert head.split()[1][:1] == b"4" or head.split()[1] == b"505", answer
    assert b"evil" not in answer and b"Traceback" not in answer


def test_strangers_who_dawdle_do_not_keep_the_owner_out(server: DashboardServer) -> None:
    with ExitStack() as stack:
        watching, stream = listen(server)
        stack.callback(watching.close)
        assert stream.readline() == b"event: hello\n"
        for _ in range(120):  # more than there are places; none ever ends its request
            stranger = stack.enter_context(
                socket.create_connection(("127.0.0.1", server.server_address[1]), 10)
            )
            stranger.sendall(b"GET / HT")
        for _ in range(3):
            connection = http.client.HTTPConnection(
                "127.0.0.1", server.server_address[1], timeout=60
            )
            stack.callback(connection.close)
            connection.request("GET", f"/{TOKEN}/")
            assert connection.getresponse().status == 200
        assert stream.readline(), "and a page that is open stays open"


class Hostile(Board):
    """A board on which a run is known already, from a site that means ill."""

    def __init__(self) -> None:
        super().__init__(Sites(None, None), None)
        follower = Follower(Sites(None, None), RUN, self._notify)
        steps = (ReportedStep(STEP, NORTH, TRAIN),)
        follower.history = RunHistory(ReportedRun(run=RUN, federation=EVIL, steps=steps))
        for number, (kind, data) in enumerate(
            [
                (EventKind.RUN, {"state": "running"}),
                (EventKind.WARNING, {"code": "E-EVIL", "message": EVIL}),
                (EventKind.RETRY, {**SAYS, "wait_seconds": 1.0}),
                (EventKind.UNREACHABLE, {**SAYS, "policy": EVIL, "patience_seconds": 1}),
            ]
        ):
            event = Event(
                seq=number + 1,
                time=1.8e9 + number,
                run=RUN,
                site=NORTH,
                step=STEP,
                kind=kind,
                data=data,
            )
            follower._fold(follower.history, event)
        follower.version = 1
        self._hostile = Watched(follower, Painter(follower, lambda: True, self._notify))
        self._hostile.painter.start()
        self._watched[RUN] = self._hostile

    def close(self) -> None:
        self._hostile.painter.close()
        self._watched.clear()
        super().close()


def test_texts_of_a_hostile_site_are_shown_as_texts() -> None:
    with browser() as opened, served(Hostile()) as server:
        visit = Visit(opened)
        page: Any = visit.page
        page.goto(f"{server.url}#{RUN}")
        page.wait_for_selector("#lines li:has-text('onerror')")
        page.wait_for_selector("[data-section=warnings]")
        drawn = page.evaluate(
            "document.querySelector('[data-section=warnings] .drawn').shadowRoot.textContent"
        )
        assert "onerror" in drawn
        assert "onerror" in page.inner_text(".card")
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img").count() == 0
        assert visit.errors == []
        assert all(entry.startswith(server.url) for entry in visit.requests), visit.requests
        visit.close()
