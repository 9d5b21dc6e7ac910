"""Child processes that simulate cells, as many at once as asked for; each imports torch and reads its data once."""

from __future__ import annotations

import json
import logging
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedelmy_launcher.experiments.federations import Prepared
from fedelmy_launcher.experiments.news import Begun, Epoch, Finished, News
from fedelmy_node.children import import_environment, python
from fedelmy_node.errors import FedelmyError, InternalError, error_from_code

__all__ = ["Crew"]

logger = logging.getLogger(__name__)


class Crew:
    """The processes; leaving the context ends them, whatever they are doing."""

    def __init__(self, cells: Sequence[Prepared], jobs: int, code: Sequence[str] = ()) -> None:
        self._cells: queue.SimpleQueue[Prepared] = queue.SimpleQueue()
        for cell in cells:
            self._cells.put(cell)
        self._left = len(cells)
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._hands = [_Hand(self._cells, self._news, code) for _ in range(min(jobs, len(cells)))]

    def __enter__(self) -> Self:
        for hand in self._hands:
            hand.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hand in self._hands:
            hand.end()
        for hand in self._hands:
            hand.join()

    def news(self) -> Iterator[News]:
        """What happens, until every cell is over."""
        while self._left:
            one = self._news.get()
            self._left -= isinstance(one, Finished)
            yield one


class _Hand(threading.Thread):
    """One process, and the thread that talks with it."""

    def __init__(self, cells: queue.SimpleQueue[Prepared], news: queue.SimpleQueue[News], code: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self._cells = cells
        self._news = news
        self._code = list(code)
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
        """Its process ends with its input."""
        with self._lock:
            self._ended = True
            if self._process is not None and self._process.stdin is not None:
                self._process.kill()
                self._process.wait()

    def _simulate(self, prepared: Prepared) -> Finished:
        try:
            with tempfile.TemporaryDirectory(prefix="fedelmy-") as directory:
                tables = prepared.write_parts(Path(directory))
                return self._ask(prepared, {"key": prepared.key, "tables": tables, "code": self._code})
        except FedelmyError as error:
            return Finished(prepared, error=error)
        except Exception as error:  # no room for the parts, or the process is gone; everybody waits for this thread
            logger.exception("a simulation cannot go on")
            self._let_go()  # what it says next would not be an answer to what it is asked next
            fault = InternalError("E-INTERNAL", f"a simulation cannot go on: {type(error).__name__}: {error}")
            return Finished(prepared, error=fault)

    def _let_go(self) -> None:
        """The next cell gets a new process."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _ask(self, prepared: Prepared, asked: Mapping[str, Any]) -> Finished:
        process = self._child()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            answer = json.loads(line)
            if "step" in answer:
                self._news.put(Epoch(prepared, answer["step"]))
            elif "error" in answer:
                told = answer["error"]
                return Finished(prepared, error=error_from_code(told["code"], told["message"], told["hint"]))
            else:
                return Finished(prepared, result=answer["result"])
        code, self._process = process.wait(), None
        hint = "It may have run out of memory: try again with fewer --jobs."
        return Finished(
            prepared, error=InternalError("E-INTERNAL", f"a simulation's process ended with code {code}", hint=hint)
        )

    def _child(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._process is None and not self._ended:
                self._process = subprocess.Popen(
                    python("fedelmy_launcher.experiments.worker"),
                    env=os.environ | import_environment(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # Ctrl-C is for the command, which then ends them
                )
            if self._process is None:
                raise InternalError("E-INTERNAL", "the experiment is being ended")
            return self._process
