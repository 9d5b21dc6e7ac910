"""Whoever waits to be called back is rung, whoever rings is connected or told why not, and nobody
for somebody else.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.names import SiteName
from fedelmy_node.peers.tunnel import tunnel_server as module
from fedelmy_node.peers.tunnel.tunnel_server import TunnelServer
from fedelmy_node.rpc.call_context import Call, answering
from fedelmy_node.store.audit_log import Act

SOUTH, WEST = SiteName("south"), SiteName("west")


class Board(TunnelServer):
    """One that remembers what it told."""

    def __init__(self) -> None:
        self.arrivals: list[SiteName] = []
        self.acts: list[Act] = []
        super().__init__(self.arrivals.append, self.acts.append)


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board()
    yield made
    made.close()


class Caller:
    """Somebody who wants a site: `outcome` is what became of it."""

    def __init__(
        self, board: TunnelServer, site: SiteName = SOUTH, who: str = "operator/o"
    ) -> None:
        self._outcome: SimpleQueue[Any] = SimpleQueue()
        self._board, self._site, self._who = board, site, who
        threading.Thread(target=self._call, daemon=True).start()

    def _call(self) -> None:
        try:
            with answering(Call(self._who)):
                self._outcome.put(self._board.reach(self._site))
        except FedelmyError as error:
            self._outcome.put(error)

    def outcome(self) -> Any:
        return self._outcome.get(timeout=30)


def talk(ours: socket.socket, theirs: socket.socket) -> None:
    with ours, theirs:
        ours.sendall(b"to")
        theirs.sendall(b"fro")
        assert (theirs.recv(9), ours.recv(9)) == (b"to", b"fro")


def soon(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "_ANSWER_SECONDS", 0.2)


def test_who_answers_a_ring_is_connected_with_who_rang(board: Board) -> None:
    rings = iter(board.rings(SOUTH))
    caller = Caller(board)
    theirs = board.answer(SOUTH, next(rings))
    talk(caller.outcome(), theirs)
    assert board.arrivals == [SOUTH]
    assert [(act.act, dict(act.facts)) for act in board.acts] == [
        ("call-relayed", {"to": "site/south"})
    ]


def test_who_does_not_wait_is_not_reached_and_nothing_is_written_down(board: Board) -> None:
    board.rings(WEST)
    assert board.join(SOUTH) is None
    error = Caller(board).outcome()
    assert error.code == "E-PEER-UNREACHABLE" and "is not waiting here" in error.message
    assert 'direction = "pull"' in error.hint
    assert board.acts == []


def test_a_caller_is_written_down_once_in_a_while(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls are many, and the audit log forgets its oldest lines when it is full."""
    monkeypatch.setattr(module, "_NOTED", 3)
    rings = iter(board.rings(SOUTH))

    def call(who: str) -> None:
        caller = Caller(board, who=who)
        theirs = board.answer(SOUTH, next(rings))
        talk(caller.outcome(), theirs)

    for who in ("operator/a", "operator/a", "operator/b", "operator/a"):
        call(who)
    assert len(board.acts) == 2
    monkeypatch.setattr(module, "_NOTED_SECONDS", 0.0)
    call("operator/a")
    assert len(board.acts) == 3
    for number in range(5):
        call(f"site/s-{number}")
    assert len(board._noted) == 3


def test_a_ring_that_nobody_answers_ends(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    soon(monkeypatch)
    rings = iter(board.rings(SOUTH))
    error = Caller(board).outcome()
    assert error.code == "E-PEER-UNREACHABLE" and "does not call back" in error.message
    with pytest.raises(FedelmyError, match="no caller is waiting for this answer"):
        board.answer(SOUTH, next(rings))  # too late


def test_nobody_answers_for_another_site_nor_twice_nor_by_guessing(board: Board) -> None:
    rings = iter(board.rings(SOUTH))
    board.rings(WEST)
    caller = Caller(board)
    ring = next(rings)
    for site, number in ((WEST, ring), (SOUTH, ""), (SOUTH, ring[:-1]), (WEST, "0" * 32)):
        with pytest.raises(FedelmyError, match="E-PEER-PROTOCOL"):
            board.answer(site, number)
    theirs = board.answer(SOUTH, ring)
    with pytest.raises(FedelmyError, match="E-PEER-PROTOCOL"):
        board.answer(SOUTH, ring)
    talk(caller.outcome(), theirs)


def test_a_site_that_goes_is_not_waited_for(board: Board) -> None:
    rings = board.rings(SOUTH)
    caller = Caller(board)
    next(iter(rings))
    began = time.monotonic()
    rings.close()
    error = caller.outcome()
    assert error.code == "E-PEER-UNREACHABLE" and "stopped waiting" in error.message
    assert time.monotonic() - began < module._ANSWER_SECONDS / 2
    assert board.join(SOUTH) is None
    rings.close()  # twice is fine


def test_a_site_that_comes_again_is_rung_again_and_its_older_wait_ends(board: Board) -> None:
    """Its first connection was dead: the ring went nowhere."""
    older = board.rings(SOUTH)
    caller = Caller(board)
    lost = next(iter(older))
    newer = iter(board.rings(SOUTH))
    assert list(older) == []
    assert next(newer) == lost
    theirs = board.answer(SOUTH, lost)
    talk(caller.outcome(), theirs)
    older.close()  # noticed late that it is gone: the newer one stays
    assert board.join(SOUTH) is not None
    assert board.arrivals == [SOUTH, SOUTH]


def test_a_closed_board_rings_nobody(board: Board) -> None:
    rings = board.rings(SOUTH)
    caller = Caller(board)
    next(iter(rings))
    board.close()
    assert "stopped waiting" in caller.outcome().message
    assert list(rings) == []
    with pytest.raises(FedelmyError, match="E-PEER-UNREACHABLE"):
        board.rings(SOUTH)
    board.close()


def test_many_callers_of_many_sites_each_get_their_own(board: Board) -> None:
    sites = [SiteName(f"site-{number}") for number in range(8)]

    def wait(site: SiteName) -> None:
        for ring in board.rings(site):
            with board.answer(site, ring) as end:
                end.sendall(site.encode())

    for site in sites:
        threading.Thread(target=wait, args=(site,), daemon=True).start()
    _until(lambda: len(board.arrivals) == len(sites))
    callers = [(site, Caller(board, site)) for site in sites * 8]
    for site, caller in callers:
        with caller.outcome() as end:
            assert end.recv(99) == site.encode()
    assert board._pending == {}


def _until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.001)
