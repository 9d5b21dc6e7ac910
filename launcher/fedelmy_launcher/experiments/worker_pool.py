"""Child processes that simulate cells in parallel; each imports torch and loads its data once."""

from __future__ import annotations

import json
import logging
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedelmy_launcher.experiments.cells import Prepared
from fedelmy_node.child_process import import_environment, python
from fedelmy_node.domain.errors import FedelmyError, InternalError, error_from_code


@dataclass(frozen=True, slots=True)
class Begun:
    """A cell was started."""

    prepared: Prepared


@dataclass(frozen=True, slots=True)
class Epoch:
    """A train step of a cell has finished an epoch."""

    prepared: Prepared
    step: str


@dataclass(frozen=True, slots=True)
class Finished:
    """A cell has a result or an error."""

    prepared: Prepared
    result: Mapping[str, Any] | None = None
    error: FedelmyError | None = None


News = Begun | Epoch | Finished
logger = logging.getLogger(__name__)


class WorkerPool:
    """The processes; leaving the context kills them."""

    def __init__(
        self,
        cells: Sequence[Prepared],
        jobs: int,
        code: Sequence[str] = (),
        weights: Path | None = None,
    ) -> None:
        """`code`: the allowed functions; `weights`: the directory of weights to start from."""
        fixed = {"code": list(code), "weights": weights and str(weights)}
        self._cells: queue.SimpleQueue[Prepared] = queue.SimpleQueue()
        for cell in cells:
            self._cells.put(cell)
        self._left = len(cells)
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._workers = [
            _Worker(self._cells, self._news, fixed) for _ in range(min(jobs, len(cells)))
        ]

    def __enter__(self) -> Self:
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            worker.join()

    def news(self) -> Iterator[News]:
        """Progress until every cell is finished."""
        while self._left:
            one = self._news.get()
            self._left -= isinstance(one, Finished)
            yield one


class _Worker(threading.Thread):
    """A process and the thread that talks to it."""

    def __init__(
        self,
        cells: queue.SimpleQueue[Prepared],
        news: queue.SimpleQueue[News],
        fixed: Mapping[str, Any],
    ) -> None:
        super().__init__(daemon=True)
        self._cells = cells
        self._news = news
        self._fixed = fixed
        self._process: subprocess.Popen[str] | None = None
        self._ended = False
        self._lock = threading.Lock()

    def run(self) -> None:
        while not self._ended:
            try:
                prepared = self._cells.get_nowait()
            except queue.Empty:
                break
            self._news.put(Begun(prepared))
            self._news.put(self._simulate(prepared))
        self.end()

    def end(self) -> None:
        with self._lock:
            self._ended = True
            if self._process is not None and self._process.stdin is not None:
                self._process.kill()
                self._process.wait()

    def _simulate(self, prepared: Prepared) -> Finished:
        try:
            with tempfile.TemporaryDirectory(prefix="fedelmy-") as directory:
                tables = prepared.write_parts(Path(directory))
                job = {"key": prepared.key, "tables": tables, "alone": prepared.alone}
                job |= self._fixed
                return self._compute(prepared, job)
        except FedelmyError as error:
            return Finished(prepared, error=error)
        except Exception as error:  # disk full or process gone: the pool waits for an answer
            logger.exception("a simulation failed")
            self._kill()  # its next output would belong to this cell
            message = f"a simulation failed: {type(error).__name__}: {error}"
            return Finished(prepared, error=InternalError("E-INTERNAL", message))

    def _kill(self) -> None:
        """The next cell gets a new process."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _compute(self, prepared: Prepared, job: Mapping[str, Any]) -> Finished:
        process = self._child()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            answer = json.loads(line)
            if "step" in answer:
                self._news.put(Epoch(prepared, answer["step"]))
            elif "error" in answer:
                fault = answer["error"]
                error = error_from_code(fault["code"], fault["message"], fault["hint"])
                return Finished(prepared, error=error)
            else:
                return Finished(prepared, result=answer["result"])
        code, self._process = process.wait(), None
        hint = "It may have run out of memory: try again with fewer --jobs."
        message = f"a simulation process exited with code {code}"
        return Finished(prepared, error=InternalError("E-INTERNAL", message, hint=hint))

    def _child(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._process is None and not self._ended:
                self._process = subprocess.Popen(
                    python("fedelmy_launcher.experiments.worker"),
                    env=os.environ | import_environment(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # only the command handles Ctrl-C
                )
            if self._process is None:
                raise InternalError("E-INTERNAL", "the experiment is shutting down")
            return self._process
