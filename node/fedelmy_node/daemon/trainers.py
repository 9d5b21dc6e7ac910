"""The trainer as the daemon sees it: a child process with a command pipe and an event pipe.

The child is started with exec and given a job; it loads, says `ready`, and waits for `go`. It has no keys,
no sockets and a bare environment, and it exits when its command pipe closes, so it cannot outlive the
daemon by more than a moment. That moment is covered by a lock that the child inherits: a restarted daemon
waits for it before it starts another trainer for the same step.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import logging
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from fedelmy_node.children import import_environment, python
from fedelmy_node.config.decode import canonical_json, decode, encode
from fedelmy_node.daemon.readiness import shuts_down
from fedelmy_node.domain.events import EventKind
from fedelmy_node.errors import FedelmyError, InternalError, TrainingError, error_from_code
from fedelmy_node.training.job import Input, Job, Outcome

__all__ = ["Trainer", "Progress", "Finished", "Failed", "Message", "OneJob"]

logger = logging.getLogger(__name__)

_MAX_LINE: Final = 64 << 20
_ATTEMPTS: Final = 3
"""A job that needs no inputs is tried this often if its trainer dies without a reason."""
_CRASHED: Final = "details.log at the site has what the trainer said; check its memory and device, then try again."
_GRACE_SECONDS: Final = 30.0
"""Between asking a trainer to end and ending it: it finishes its batch and writes a checkpoint."""
_INHERITED: Final = frozenset({"PATH", "HOME", "LANG", "TZ", "TMPDIR", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH"})
_INHERITED_FAMILIES: Final = (
    "CUDA_",
    "NVIDIA_",
    "LC_",
    "OMP_",
    "MKL_",
    "KMP_",
    "ATEN_",
    "ONEDNN_",
    "TORCH_",
    "PYTORCH_",
)
"""The environment variables that a trainer may see, by name and by beginning of the name."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The trainer reports an event."""

    kind: EventKind
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finished:
    """The job is done."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Failed:
    """The job cannot be done, or the process died."""

    error: FedelmyError
    crashed: bool
    """The process died without saying why: doing the same again may help."""


Message = Progress | Finished | Failed


class Trainer:
    """One trainer process for one job. `tell` is called on the trainer's own thread, last with Finished or Failed."""

    def __init__(
        self, job: Job, directory: Path, tell: Callable[[Message], None], about: Mapping[str, str] | None = None
    ) -> None:
        """`about`: run and step, for the log; a job does not know them."""
        self.job = job
        self._about = dict(about or {})
        self._directory = directory
        self._tell = tell
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._inputs: tuple[Input, ...] | None = None
        self._stopped = False
        self._began = False
        """Whether it works on its step: before that there is nothing to keep."""
        self._thread = threading.Thread(target=self._run, name="trainer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def go(self, inputs: tuple[Input, ...]) -> None:
        """The inputs are there: begin as soon as everything is loaded."""
        with self._guard:
            self._inputs = inputs
            self._send_inputs()

    def stop(self) -> None:
        """Ask the process to end; what it did will be gone on with, so it has time for a checkpoint.

        Nothing more is told. Returns at once; after its grace the process is ended by force, and at once if it only
        loads, or has no checkpoints.
        """
        if self.job.checkpoints is None or not self._began:
            self.kill()
            return
        with self._guard:
            self._stopped = True
            if self._process is not None:
                self._process.terminate()
        killer = threading.Timer(_GRACE_SECONDS, self.kill)
        killer.daemon = True
        killer.start()

    def kill(self) -> None:
        """End the process at once: nobody wants what it does. Nothing more is told."""
        with self._guard:
            self._stopped = True
            if self._process is not None and self._process.poll() is None:
                self._process.kill()

    def join(self, timeout_seconds: float) -> None:
        """Wait for the end after `stop`, which may take its grace and then this long."""
        with self._guard:
            grace_seconds = _GRACE_SECONDS if self._process is not None else 0.0  # it may wait for its lock
        self._thread.join(grace_seconds + timeout_seconds)
        self.kill()
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        last: Message
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (self._directory / "trainer.lock").open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                last = self._talk(lock)
        except OSError as error:
            reason = f"the trainer cannot be started: {error.strerror}"
            last = Failed(TrainingError("E-TRAINING-CRASH", reason, private=str(error)), crashed=True)
        except Exception:
            logger.exception("fault while talking to a trainer", extra=self._about)
            fault = InternalError("E-INTERNAL", "talking to the trainer failed; see the node's log")
            last = Failed(fault, crashed=False)
        if not self._stopped:
            self._tell(last)

    def _talk(self, lock: IO[bytes]) -> Message:
        """Start the process, pass its events on, and return how it ended."""
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as events, (self._directory / "trainer.log").open("ab") as log:
            try:
                process = subprocess.Popen(
                    python("fedelmy_node.training.trainer", "--events-fd", str(writing),
                           "--about", " ".join((self.job.site, *self._about.values()))),
                    stdin=subprocess.PIPE, stdout=log, stderr=log, env=_environment(self.job),
                    cwd=self._directory, pass_fds=(writing, lock.fileno()), start_new_session=True,
                )  # fmt: skip
            finally:
                os.close(writing)
            with self._guard:
                self._process = process
                if self._stopped:
                    process.kill()
                self._write({"job": json.loads(canonical_json(self.job))})
                self._send_inputs()
            last: Message | None = None
            try:
                while line := events.readline(_MAX_LINE):
                    last = _read(line)
                    self._began |= isinstance(last, Progress) and last.kind != EventKind.READY
                    if isinstance(last, Progress) and not self._stopped:
                        self._tell(last)
            finally:
                # Its command pipe closed, a trainer that still runs ends at once.
                assert process.stdin is not None
                with self._guard, contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
                code = process.wait()
        if isinstance(last, Finished | Failed):
            return last
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        if not self._stopped:
            # Digests of run and step, below the state directory: no name of anybody.
            place = "/".join(self._directory.parts[-4:])
            logger.error("the trainer %s; its log: %s/trainer.log", how, place, extra=self._about)
        error = TrainingError("E-TRAINING-CRASH", f"the trainer {how}")
        return Failed(error, crashed=True)

    def _send_inputs(self) -> None:
        if self._process is not None and self._inputs is not None:
            self._write({"go": {"inputs": encode(self._inputs)}})

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            logger.debug("the trainer is gone; its exit is reported by its reader")


class OneJob:
    """A trainer for a job that needs no inputs, and the way to wait for it; one that dies is started again."""

    def __init__(self, job: Job, directory: Path, about: Mapping[str, str] | None = None) -> None:
        self._job, self._directory, self._about = job, directory, about
        self._guard = threading.Lock()
        self._trainer: Trainer | None = None
        self._ended: queue.SimpleQueue[Finished | Failed | None] = queue.SimpleQueue()
        self._stopped = False

    def run(self) -> Outcome:
        """What the job came to; what went wrong is raised."""
        for attempt in itertools.count(1):
            last = self._attempt()
            if isinstance(last, Finished):
                return last.outcome
            if last is None:
                break
            if not last.crashed:
                raise last.error
            logger.warning("%s; attempt %d of %d", last.error, attempt, _ATTEMPTS, extra=self._about)
            if attempt == _ATTEMPTS:
                message, private = f"{last.error.message}, {attempt} times in a row", last.error.private
                raise TrainingError("E-TRAINING-CRASH", message, hint=_CRASHED, private=private)
        raise shuts_down()

    def _attempt(self) -> Finished | Failed | None:
        with self._guard:
            if self._stopped:
                return None
            self._trainer = Trainer(self._job, self._directory, self._hear, self._about)
            self._trainer.start()
            self._trainer.go(())
        return self._ended.get()

    def stop(self) -> None:
        """Nobody waits for the outcome any more, and nothing of it is kept."""
        with self._guard:
            self._stopped = True
            if self._trainer is not None:
                self._trainer.kill()
        self._ended.put(None)

    def _hear(self, message: Message) -> None:
        if not isinstance(message, Progress):
            self._ended.put(message)


def _read(line: bytes) -> Message:
    message = json.loads(line)
    if "event" in message:
        return Progress(EventKind(message["event"]), message["data"])
    if "ready" in message:
        return Progress(EventKind.READY, message["ready"])
    if "done" in message:
        return Finished(decode(Outcome, message["done"]))
    problem = message["error"]
    error = error_from_code(problem["code"], problem["message"], problem["hint"], problem["private"])
    error.inputs = tuple(problem["inputs"])
    return Failed(error, crashed=False)


def _environment(job: Job) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith(_INHERITED_FAMILIES)
    }
    # Fixed before torch is loaded: the last bits of the result depend on the number of threads.
    return kept | import_environment() | {"OMP_NUM_THREADS": str(job.recipe.training.threads), "PYTHONUNBUFFERED": "1"}
