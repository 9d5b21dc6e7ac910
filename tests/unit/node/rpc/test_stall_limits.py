"""Looks that come when they are due, again if they ask for it, and not when they were put off."""

from __future__ import annotations

import threading

from fedelmy_node.rpc.stall_limits import Timers


def test_the_first_due_is_the_first_looked_at() -> None:
    seen: list[str] = []
    done = threading.Event()
    alarms = Timers()
    alarms.after(0.2, lambda: (seen.append("late"), done.set())[0])
    alarms.after(0.05, lambda: seen.append("early"))
    never = alarms.after(0.1, lambda: seen.append("never"))
    never.cancel()
    assert done.wait(10)
    assert seen == ["early", "late"]


def test_a_look_may_ask_for_another() -> None:
    looks, done = [0], threading.Event()

    def look() -> float | None:
        looks[0] += 1
        if looks[0] == 3:
            done.set()
            return None
        return 0.01

    Timers().after(0.01, look)
    assert done.wait(10) and looks == [3]


def test_what_was_put_off_takes_no_room() -> None:
    """A call is over long before anybody would look whether it stands still; there may be thousands
    in that time.
    """
    alarms, done = Timers(), threading.Event()
    kept = [alarms.after(60, lambda: None) for _ in range(300)]
    alarms.after(0.2, done.set)
    for _ in range(20_000):
        alarms.after(60, lambda: None).cancel()
    assert len(alarms._due) <= 2 * (len(kept) + 1)
    assert done.wait(10)


def test_a_look_that_fails_takes_no_other_with_it() -> None:
    done = threading.Event()
    alarms = Timers()
    alarms.after(0.01, lambda: 1 / 0)
    alarms.after(0.05, done.set)  # type: ignore[arg-type]  # None: never again
    assert done.wait(10)
