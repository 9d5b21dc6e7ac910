"""The other processes of a trainer that has several, as the first one starts and watches them.

To each of them it is what the daemon is to it: it gives the job and the word to go, and when its pipe closes, they end.
None of them can be missed, so whoever ends early ends all; the daemon then goes on from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from fedelmy_node.children import python
from fedelmy_node.config.decode import canonical_json, encode
from fedelmy_node.training.job import Input, Job

__all__ = ["Team", "meeting_place"]


def meeting_place(job: Job) -> Path:
    """The file through which the processes of a job find each other; gone once they have."""
    assert job.output is not None, "only a train step has several processes, and it has an output"
    return job.output.with_name("processes")


class Team:
    """`failed` is called, on a thread of its own, with what a process reported, or None if it just ended."""

    def __init__(self, job: Job, about: str, failed: Callable[[Mapping[str, Any] | None], None]) -> None:
        self._failed = failed
        self._members: list[subprocess.Popen[bytes]] = []
        meeting_place(job).unlink(missing_ok=True)
        for number in range(1, job.processes):
            self._start(number, about)
        self._tell({"job": json.loads(canonical_json(job))})

    def go(self, inputs: Sequence[Input]) -> None:
        """The inputs are there."""
        self._tell({"go": {"inputs": encode(inputs)}})

    def close(self) -> None:
        """Nobody needs them any more."""
        self._failed = lambda _: None
        for member in self._members:
            member.kill()
            member.wait()

    def _start(self, number: int, about: str) -> None:
        reading, writing = os.pipe()
        try:
            member = subprocess.Popen(
                python("fedelmy_node.training.trainer", "--events-fd", str(writing),
                       "--rank", str(number), "--about", f"{about} process {number}"),
                stdin=subprocess.PIPE, pass_fds=(writing,),
            )  # fmt: skip
        finally:
            os.close(writing)
        self._members.append(member)
        events = os.fdopen(reading, "rb")
        threading.Thread(target=self._watch, args=(events,), name=f"process-{number}", daemon=True).start()

    def _tell(self, message: Mapping[str, Any]) -> None:
        for member in self._members:
            assert member.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended, and its watcher knows
                member.stdin.write(json.dumps(message).encode() + b"\n")
                member.stdin.flush()

    def _watch(self, events: IO[bytes]) -> None:
        with events:
            for line in events:
                message = json.loads(line)
                if "error" in message:
                    self._failed(message["error"])
                if "done" in message:
                    return
        self._failed(None)
