"""Signals reach the node whichever of its threads the system gives them to."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_STOPS = """
import signal, sys, threading, time
from fedelmy_node.cli.serve import _stop_on_signals

stopped = threading.Event()
_stop_on_signals(stopped.set)

def kill_myself():
    main = threading.main_thread().ident
    while sys._current_frames()[main].f_code.co_name != "wait":
        time.sleep(0.01)
    time.sleep(0.1)  # and now it is in the lock itself
    signal.pthread_kill(threading.get_ident(), int(sys.argv[1]))
    threading.Event().wait()  # a thread that ended would wake the main thread

threading.Thread(target=kill_myself, daemon=True).start()
stopped.wait()
if sys.argv[2] == "twice":
    signal.raise_signal(int(sys.argv[1]))
    threading.Event().wait()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("often", ["once", "twice"])
def test_a_signal_to_another_thread_stops_the_node_and_a_second_one_ends_it(
    number: int, often: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STOPS, str(int(number)), often], timeout=60, check=False
    )
    assert done.returncode == (0 if often == "once" else 128 + number)
