"""The daemon's side of a trainer: a child process with a command pipe and an event pipe.

The child is started with exec and gets a job; it loads, reports `ready`, and waits for `go`. It has
no keys, no sockets and a minimal environment. It exits when its command pipe closes, so it outlives
the daemon only for a moment. A lock that the child inherits covers that moment: a restarted daemon
waits for the lock before it starts another trainer for the same step.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import logging
import os
import queue
import re
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from fedelmy_node.child_process import import_environment, python
from fedelmy_node.config.decode import canonical_json, decode, encode
from fedelmy_node.device.supervisor import shuts_down
from fedelmy_node.domain.errors import FedelmyError, InternalError, TrainingError, error_from_code
from fedelmy_node.domain.events import EventKind
from fedelmy_node.training.job import Input, Job, Outcome

logger = logging.getLogger(__name__)

_MAX_LINE: Final = 64 << 20
_ATTEMPTS: Final = 3
"""How often a job without inputs is tried if its trainer crashes."""
_CRASH_HINT: Final = "See details.log at the site; check memory and device, then try again."
_GRACE_SECONDS: Final = 30.0
"""From SIGTERM to SIGKILL: the trainer finishes its batch and writes a checkpoint."""
_INHERITED: Final = re.compile(
    "PATH|HOME|LANG|TZ|TMPDIR|PYTHONHOME|VIRTUAL_ENV|LD_LIBRARY_PATH"
    "|(CUDA|NVIDIA|LC|OMP|MKL|KMP|ATEN|ONEDNN|TORCH|PYTORCH)_.*"
)
"""The environment variables that a trainer may see."""


@dataclass(frozen=True, slots=True)
class Progress:
    """An event that the trainer reports."""

    kind: EventKind
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finished:
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Failed:
    """The job failed, or the process died."""

    error: FedelmyError
    crashed: bool
    """The process died without an error message: a retry may help."""


Message = Progress | Finished | Failed


class Trainer:
    """One trainer process for one job.

    `notify` is called on the trainer's own thread, last with Finished or Failed. `about` is the
    run and the step, for the log.
    """

    def __init__(
        self,
        job: Job,
        directory: Path,
        notify: Callable[[Message], None],
        about: Mapping[str, str] | None = None,
    ) -> None:
        self.job, self._directory, self._notify = job, directory, notify
        self._about = dict(about or {})
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._inputs: tuple[Input, ...] | None = None
        self._stopped = False
        self._began = False
        """Whether it works on its step: before that, there is nothing to save."""
        self._thread = threading.Thread(target=self._run, name="trainer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def go(self, inputs: tuple[Input, ...]) -> None:
        """Provide the inputs; the step begins as soon as everything is loaded."""
        with self._guard:
            self._inputs = inputs
            self._send_inputs()

    def stop(self) -> None:
        """Ask the process to write a checkpoint and exit, and send no more messages.

        Return at once. The process is killed after a grace period, or immediately if it is still
        loading or keeps no checkpoints.
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
        """Kill the process and send no more messages."""
        with self._guard:
            self._stopped = True
            if self._process is not None and self._process.poll() is None:
                self._process.kill()

    def join(self, timeout_seconds: float) -> None:
        """Wait for the end after `stop`: the grace period, then up to `timeout_seconds`."""
        with self._guard:  # without a process, the thread may be waiting for its lock
            grace_seconds = _GRACE_SECONDS if self._process is not None else 0.0
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
            reason = f"cannot start the trainer: {error.strerror}"
            crash = TrainingError("E-TRAINING-CRASH", reason, private=str(error))
            last = Failed(crash, crashed=True)
        except Exception:
            logger.exception("internal error in communication with a trainer", extra=self._about)
            message = "communication with the trainer failed; see the node's log"
            last = Failed(InternalError("E-INTERNAL", message), crashed=False)
        if not self._stopped:
            self._notify(last)

    def _talk(self, lock: IO[bytes]) -> Message:
        """Start the process, pass its events on, and return how it ended."""
        reader, writer = os.pipe()
        about = " ".join((self.job.site, *self._about.values()))
        options = ("--events-fd", str(writer), "--about", about)
        log_path = self._directory / "trainer.log"
        with os.fdopen(reader, "rb") as events, log_path.open("ab") as log:
            try:
                process = subprocess.Popen(
                    python("fedelmy_node.training.trainer", *options),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=_environment(self.job),
                    cwd=self._directory,
                    pass_fds=(writer, lock.fileno()),
                    start_new_session=True,
                )
            finally:
                os.close(writer)
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
                        self._notify(last)
            finally:
                # A trainer that still runs exits when its command pipe closes.
                assert process.stdin is not None
                with self._guard, contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
                code = process.wait()
        if isinstance(last, Finished | Failed):
            return last
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        if not self._stopped:
            # trainer.log is deleted with the run or the scratch directory; details.log stays.
            output = log_path.read_text("utf-8", errors="replace")[-4000:]
            private = f"output of the trainer: {output}"
            logger.error("the trainer %s", how, extra={**self._about, "private": private})
        return Failed(TrainingError("E-TRAINING-CRASH", f"the trainer {how}"), crashed=True)

    def _send_inputs(self) -> None:
        if self._process is not None and self._inputs is not None:
            self._write({"go": {"inputs": encode(self._inputs)}})

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            logger.debug("the trainer has ended; its exit is reported by the event reader")


class OneJob:
    """Run a job that needs no inputs, wait for it, and retry after a crash."""

    def __init__(self, job: Job, directory: Path, about: Mapping[str, str] | None = None) -> None:
        self._job, self._directory, self._about = job, directory, about
        self._guard = threading.Lock()
        self._trainer: Trainer | None = None
        self._ended: queue.SimpleQueue[Finished | Failed | None] = queue.SimpleQueue()
        self._stopped = False

    def run(self) -> Outcome:
        for attempt in itertools.count(1):
            last = self._attempt()
            if isinstance(last, Finished):
                return last.outcome
            if last is None:
                break
            if not last.crashed:
                raise last.error
            error, extra = last.error, self._about
            logger.warning("%s; attempt %d of %d", error, attempt, _ATTEMPTS, extra=extra)
            if attempt == _ATTEMPTS:
                message, private = f"{error.message}, {attempt} times in a row", error.private
                raise TrainingError("E-TRAINING-CRASH", message, hint=_CRASH_HINT, private=private)
        raise shuts_down()

    def _attempt(self) -> Finished | Failed | None:
        with self._guard:
            if self._stopped:
                return None
            self._trainer = Trainer(self._job, self._directory, self._on_message, self._about)
            self._trainer.start()
            self._trainer.go(())
        return self._ended.get()

    def stop(self) -> None:
        """Kill the trainer and discard its outcome."""
        with self._guard:
            self._stopped = True
            if self._trainer is not None:
                self._trainer.kill()
        self._ended.put(None)

    def _on_message(self, message: Message) -> None:
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
    details = (problem[key] for key in ("code", "message", "hint", "private"))
    error = error_from_code(*details)
    error.inputs = tuple(problem["inputs"])
    return Failed(error, crashed=False)


def _environment(job: Job) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if _INHERITED.fullmatch(name)}
    # Fixed before torch is loaded: the last bits of the result depend on the number of threads.
    threads = str(job.recipe.training.threads)
    return kept | import_environment() | {"OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1"}
