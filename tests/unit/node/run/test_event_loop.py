"""The executor's loop: one thing after the other, and a fault ends it without leaving anybody
waiting.
"""

from __future__ import annotations

import threading
import time

import pytest

from fedelmy_node.domain.errors import PeerError, RunError
from fedelmy_node.run.event_loop import Loop


def make(
    alarm: float | None = None, ring: threading.Event | None = None
) -> tuple[Loop, threading.Event]:
    faulted = threading.Event()
    rung = ring or threading.Event()
    pending = [alarm]
    loop = Loop(lambda: pending.pop() if pending else None, rung.set, lambda _: faulted.set())
    loop.open()
    return loop, faulted


def test_in_order_on_one_thread() -> None:
    loop, _ = make()
    done: list[tuple[int, str]] = []
    for number in range(50):
        loop.post(lambda number=number: done.append((number, threading.current_thread().name)))  # type: ignore[misc]
    assert loop.ask(lambda: len(done)) == 50
    assert done == [(number, "executor") for number in range(50)]
    loop.close()


def test_what_a_question_raises_belongs_to_who_asked() -> None:
    loop, faulted = make()

    def question() -> None:
        raise RunError("E-RUN-UNKNOWN", "no such run")

    with pytest.raises(RunError):
        loop.ask(question)
    assert loop.is_alive and not faulted.is_set()
    loop.close()


def test_a_fault_ends_the_loop_and_nobody_waits_for_ever() -> None:
    loop, faulted = make()
    begun, go = threading.Event(), threading.Event()

    def fault() -> None:
        begun.set()
        go.wait(10)
        raise ValueError("a bug")

    loop.post(fault)
    begun.wait(10)
    waiting = threading.Thread(target=lambda: answers.append(attempt(loop)))
    answers: list[str] = []
    waiting.start()
    while not loop._asked:
        pass
    go.set()
    waiting.join(10)
    assert answers == ["E-PEER-UNREACHABLE"]
    assert faulted.wait(10) and not loop.is_alive
    with pytest.raises(PeerError):
        loop.ask(lambda: 1)
    loop.close()


def attempt(loop: Loop) -> str:
    try:
        loop.ask(lambda: 1)
    except PeerError as error:
        return error.code
    return "answered"


def test_the_alarm_rings() -> None:
    ring = threading.Event()
    loop, _ = make(alarm=0.01, ring=ring)
    assert ring.wait(10)
    loop.close()


def test_a_question_that_met_a_fault_ends_the_loop_too() -> None:
    loop, faulted = make()

    def question() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop.ask(question)
    assert faulted.wait(10)
    loop.close()


def test_a_deadline_is_kept_however_much_is_posted() -> None:
    rung, due = threading.Event(), [0.2]
    begun = time.monotonic()
    loop = Loop(
        lambda: due[0] - (time.monotonic() - begun) if due else None,
        lambda: (due.clear(), rung.set()),
        print,
    )

    def again() -> None:
        if not rung.is_set():
            loop.post(again)

    loop.post(again)
    loop.open()
    assert rung.wait(10)
    loop.close()
