"""The trainer process: one job, then exit. `python -m fedelmy_node.training.trainer --events-fd N`

    stdin     {"job": {...}}  then  {"go": {"inputs": [{"path", "sha256"}, ...]}}   one per line
    fd N      {"ready": {...}}  {"event": KIND, "data": {...}} ...
              {"done": {...}}  or                                           the last line
              {"error": {"code", "message", "hint", "private", "inputs"}}

Exit codes: 0 done; 1 the error was reported; 3 the daemon is gone; 4 another process of this
trainer is gone; 143 SIGTERM. The process exits when stdin closes, so it never outlives its daemon.
SIGTERM ends it at once, unless it trains with checkpoints: then it finishes its batch and writes
one first. With `--rank N` it is one of several processes of a trainer (`distributed.Team`), and the
first process acts as its daemon.
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
from fedelmy_node.domain.errors import FedelmyError, InternalError, TrainingError
from fedelmy_node.domain.events import EventKind
from fedelmy_node.training.distributed import Team, rendezvous_file
from fedelmy_node.training.job import PREPARE, Input, Job
from fedelmy_node.training.stop_signal import StopSignal, Terminated
from fedelmy_node.training.strategies import operations_of

EXIT_ERROR: Final = 1
EXIT_ORPHANED: Final = 3
EXIT_TEAM: Final = 4
EXIT_TERMINATED: Final = 128 + signal.SIGTERM
_COMMON_END_SECONDS: Final = 5.0
_TRACEBACK_CHARACTERS: Final = 4000


class DaemonPipe:
    """The two pipes to the daemon; a thread reads, so that the daemon's exit is noticed at once."""

    def __init__(self, commands_fd: int, events_fd: int) -> None:
        self._commands_fd = commands_fd
        self._events_fd = events_fd
        self._commands: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.ended = threading.Event()
        """The last line is sent."""
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="daemon-watch", daemon=True).start()

    def receive(self, kind: str) -> Any:
        """Wait for the next command, which must be of this kind."""
        text = self._commands.get()
        try:
            return json.loads(text)[kind]
        except (ValueError, KeyError, TypeError) as error:
            message = f"the daemon sent {text[:80]!r} instead of {kind!r}"
            raise InternalError("E-INTERNAL", message) from error

    def send(self, message: Mapping[str, Any], *, last: bool = False) -> None:
        """Write one line; after the last one the daemon may close its end."""
        value = _finite(encode(message))
        text = json.dumps(value, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self.ended.is_set():
                return  # if several processes fail together, the first error counts
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
    """Set up the process, run the job, report the outcome."""
    parser = argparse.ArgumentParser(
        description="Started by the daemon; not meant to be run by hand."
    )
    parser.add_argument("--events-fd", type=int, required=True)
    parser.add_argument("--about", default="", help="site, run and step, for logs and `ps`")
    parser.add_argument("--rank", type=int, default=0, help="rank of this process, from 0")
    given = parser.parse_args(arguments)
    events_fd = given.events_fd
    _configure_logging(given.about)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon handles Ctrl-C
    pipe = DaemonPipe(_take_over_stdin(), events_fd)
    os.set_inheritable(events_fd, False)
    stop = StopSignal()
    try:
        # Of several processes, the first decides when to stop and writes a checkpoint.
        signal.signal(signal.SIGTERM, signal.SIG_IGN if given.rank else lambda *_: stop.request())
        _do(pipe, stop, given.rank, given.about)
    except Terminated:
        return EXIT_TERMINATED
    except FedelmyError as error:
        return _fail(pipe, error)
    except Exception as error:  # noqa: BLE001 - process boundary; the step's log has the traceback
        traceback.print_exc()
        reason = f"the trainer failed: {type(error).__name__}"
        private = traceback.format_exc()[-_TRACEBACK_CHARACTERS:]  # for details.log
        return _fail(pipe, TrainingError("E-TRAINING-CRASH", reason, private=private))
    return 0


def _configure_logging(about: str) -> None:
    """Log to the step's own, private file, in the daemon's format."""
    about = about.replace("%", "%%")
    text = f"%(asctime)s.%(msecs)03dZ %(levelname)-7s {about} %(name)s: %(message)s"
    formatter = logging.Formatter(text, "%Y-%m-%d %H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _do(pipe: DaemonPipe, stop: StopSignal, rank: int = 0, about: str = "") -> None:
    job = decode(Job, pipe.receive("job"), "job")
    count = job.processes if is_distributed(job) else 1
    team = Team(job, about, partial(_fail_together, pipe)) if count > 1 and rank == 0 else None
    # Importing torch takes seconds, so validate the job first.
    from fedelmy_node.training.distributed import Ranks
    from fedelmy_node.training.loading import load
    from fedelmy_node.training.step import run

    loaded = load(job, Ranks(rank, count))
    pipe.send({"ready": loaded.summary})
    inputs = tuple(decode(Input, given, "go") for given in pipe.receive("go")["inputs"])

    def emit(kind: EventKind, data: Mapping[str, Any]) -> None:
        if rank == 0:  # the other processes would report the same
            pipe.send({"event": kind.value, "data": data})

    if team is not None:
        team.go(inputs)
    try:
        outcome = run(loaded, inputs, emit, stop)
    except RuntimeError:
        if team is not None:
            team.await_loss(_COMMON_END_SECONDS)  # if another process is gone, that is the cause
        raise
    pipe.send({"done": outcome}, last=True)
    if team is not None:
        team.close()
        rendezvous_file(job).unlink(missing_ok=True)


def is_distributed(job: Job) -> bool:
    """Whether several processes compute the job together, if the site is configured so."""
    if job.kind == PREPARE:
        return False
    known = operations_of(job.recipe.strategy.name).get(job.kind)
    return known is not None and known.traits.trains and known.fits


def _fail_together(pipe: DaemonPipe, problem: Mapping[str, Any] | None) -> None:
    """Exit because another process of this trainer failed or is gone."""
    if problem is not None:
        # A common failure, such as a divergence, also ends this process, which then removes its
        # checkpoints; wait for that.
        pipe.ended.wait(_COMMON_END_SECONDS)
        pipe.send({"error": problem}, last=True)
        os._exit(EXIT_ERROR)
    os._exit(EXIT_TEAM)


def _fail(pipe: DaemonPipe, error: FedelmyError) -> int:
    names = ("code", "message", "hint", "private", "inputs")
    problem = {name: getattr(error, name) for name in names}
    pipe.send({"error": problem}, last=True)
    return EXIT_ERROR


def _take_over_stdin() -> int:
    """Hide the pipe from user code, which may read stdin, print, or start processes."""
    commands_fd = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return commands_fd


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None."""
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
    os._exit(code)  # unloading torch would block the device for a second
