"""The first signal ends the node in good order, wherever the main thread is at that moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from fedelmy_node.cli.serve import _stop_on_signals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.timeout(60)
def test_a_signal_that_comes_while_the_main_thread_begins_to_wait() -> None:
    """A signal's handler runs on the main thread: there, it would wait for a lock that this thread
    itself holds.
    """
    stopping = threading.Event()
    _stop_on_signals(stopping.set)
    with stopping._cond:  # type: ignore[attr-defined]
        os.kill(os.getpid(), signal.SIGTERM)
    assert stopping.wait(30)


def test_a_node_that_does_not_end_is_ended():
    code = (
        "import threading, time\n"
        "from fedelmy_node.cli.serve import _end_in_time\n"
        "stopping = threading.Event()\n"
        "threading.Thread(target=_end_in_time, args=(stopping, 0.1), daemon=True).start()\n"
        "stopping.set()\n"
        "time.sleep(3600)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 70
