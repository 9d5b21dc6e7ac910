"""The trainer process: one job, then exit. `python -m fedelmy_node.training.trainer --events-fd N`

    stdin     {"job": {...}}  then  {"go": {"inputs": [{"path", "sha256"}, ...]}}   one JSON object per line
    fd N      {"ready": {...}}  {"event": KIND, "data": {...}} ...          what it says meanwhile
              {"done": {...}}  or                                           the last line
              {"error": {"code", "message", "hint", "private", "inputs"}}

Exit codes: 0 done; 1 the error was reported; 3 the daemon is gone; 4 another process of this trainer is gone; 143
SIGTERM. The end of stdin means that the daemon is gone or wants no more: the process ends at once, so it never outlives
its daemon. SIGTERM ends it at once, too, unless it trains with checkpoints: then it finishes its batch and writes one
first. With `--rank N` it is one of several processes of a trainer (`team.py`): the first one is its daemon.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from fedelmy_node.config.decode import decode, encode
from fedelmy_node.domain.events import EventKind
from fedelmy_node.errors import FedelmyError, InternalError, TrainingError
from fedelmy_node.training.job import Input, Job
from fedelmy_node.training.stopping import Stopping, Terminated
from fedelmy_node.training.team import Team, meeting_place

__all__ = ["main", "EXIT_ERROR", "EXIT_ORPHANED", "EXIT_TEAM", "EXIT_TERMINATED"]

EXIT_ERROR: Final = 1
EXIT_ORPHANED: Final = 3
EXIT_TEAM: Final = 4
EXIT_TERMINATED: Final = 128 + signal.SIGTERM
_COMMON_END_SECONDS: Final = 5.0


class Line:
    """The two pipes to the daemon; a thread reads, so that the end of the daemon is noticed at any time."""

    def __init__(self, commands_fd: int, events_fd: int) -> None:
        self._commands_fd = commands_fd
        self._events_fd = events_fd
        self._commands: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.ended = threading.Event()
        """The last line is sent."""
        self._one_at_a_time = threading.Lock()
        threading.Thread(target=self._watch, name="daemon-watch", daemon=True).start()

    def receive(self, kind: str) -> Any:
        """Wait for the daemon's next command, which must be of this kind."""
        text = self._commands.get()
        try:
            return json.loads(text)[kind]
        except (ValueError, KeyError, TypeError) as error:
            raise InternalError("E-INTERNAL", f"the daemon sent {text[:80]!r} instead of {kind!r}") from error

    def send(self, message: Mapping[str, Any], *, last: bool = False) -> None:
        """Write one line; after the last one the daemon may close its end without ending this process."""
        text = json.dumps(_finite(encode(message)), allow_nan=False, separators=(",", ":")).encode() + b"\n"
        with self._one_at_a_time:
            if self.ended.is_set():
                return  # of several processes that fail together, the first word counts
            if last:
                self.ended.set()
            try:
                while text:
                    text = text[os.write(self._events_fd, text) :]
            except BrokenPipeError:
                os._exit(EXIT_ORPHANED)

    def _watch(self) -> None:
        buffer = b""
        while data := os.read(self._commands_fd, 65536):
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                self._commands.put(line)
        if not self.ended.is_set():
            os._exit(EXIT_ORPHANED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Set the process up, do the job, report how it went."""
    parser = argparse.ArgumentParser(description="Started by the daemon, not by people.")
    parser.add_argument("--events-fd", type=int, required=True)
    parser.add_argument("--about", default="", help="site, run and step, for whoever reads the log or lists processes")
    parser.add_argument("--rank", type=int, default=0, help="which process of several; the first is 0")
    given = parser.parse_args(arguments)
    events_fd = given.events_fd
    _configure_logging(given.about)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal belongs to the daemon
    line = Line(_take_over_stdin(), events_fd)
    os.set_inheritable(events_fd, False)
    stopping = Stopping()
    try:
        # Of several processes the first decides when to end, and writes a checkpoint; the others end with it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN if given.rank else lambda *_: stopping.ask())
        _do(line, stopping, given.rank, given.about)
    except Terminated:
        return EXIT_TERMINATED
    except FedelmyError as error:
        return _fail(line, error)
    except Exception as error:  # noqa: BLE001 - the process boundary: the traceback goes to the step's log
        traceback.print_exc()
        reason = f"the trainer failed: {type(error).__name__}"
        return _fail(line, TrainingError("E-TRAINING-CRASH", reason, private=str(error)))
    return 0


def _configure_logging(about: str) -> None:
    """The step's own log, in a private file: lines as the daemon's, with site, run and step."""
    formatter = logging.Formatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)-7s {about.replace('%', '%%')} %(name)s: %(message)s",
        "%Y-%m-%d %H:%M:%S",
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _do(line: Line, stopping: Stopping, rank: int = 0, about: str = "") -> None:
    job = decode(Job, line.receive("job"), "job")
    count = job.processes if job.kind == "train" else 1
    team = Team(job, about, partial(_fail_together, line)) if count > 1 and rank == 0 else None
    # Imports torch, which takes seconds: not before the job is known to be one.
    from fedelmy_node.training.ranks import Ranks
    from fedelmy_node.training.step import load, run

    loaded = load(job, Ranks(rank, count))
    line.send({"ready": loaded.summary})
    inputs = tuple(decode(Input, given, "go") for given in line.receive("go")["inputs"])

    def emit(kind: EventKind, data: Mapping[str, Any]) -> None:
        line.send({"event": kind.value, "data": data})

    if team is not None:
        team.go(inputs)
    outcome = run(loaded, inputs, emit if rank == 0 else _silent, stopping)
    line.send({"done": outcome}, last=True)
    if team is not None:
        team.close()
        meeting_place(job).unlink(missing_ok=True)


def _silent(kind: EventKind, data: Mapping[str, Any]) -> None:
    """The first process tells it."""


def _fail_together(line: Line, problem: Mapping[str, Any] | None) -> None:
    """Another process of this trainer failed or is gone; this one waits for it and cannot go on."""
    if problem is not None:
        # What all of them compute alike, such as a divergence, ends this one, too: it then removes its checkpoints.
        line.ended.wait(_COMMON_END_SECONDS)
        line.send({"error": problem}, last=True)
        os._exit(EXIT_ERROR)
    os._exit(EXIT_TEAM)


def _fail(line: Line, error: FedelmyError) -> int:
    problem = {
        "code": error.code, "message": error.message, "hint": error.hint, "private": error.private,
        "inputs": error.inputs,
    }  # fmt: skip
    line.send({"error": problem}, last=True)
    return EXIT_ERROR


def _take_over_stdin() -> int:
    """Keep the pipes out of reach of what runs here: user code may read stdin, print, or start processes."""
    commands_fd = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return commands_fd


def _finite(value: Any) -> Any:
    """The same data with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # all that matters is on disk and said; unloading torch would hold the device for a second
