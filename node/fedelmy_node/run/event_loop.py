"""One thread that runs posted actions, one after the other.

It is crash-only: an action that raises something unexpected ends the loop and is reported once,
because the daemon's memory can no longer be trusted. The journal can: a restart continues from
there.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from fedelmy_node.device.supervisor import shuts_down
from fedelmy_node.domain.errors import FedelmyError, StoreError

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Loop:
    """Call `post` and `ask` from any thread; their actions run on the loop's own thread."""

    def __init__(
        self,
        alarm: Callable[[], float | None],
        ring: Callable[[], None],
        faulted: Callable[[Exception], None],
    ) -> None:
        """`alarm` returns the seconds until the next `ring` if nothing else happens; `faulted` is
        called with the error that ended the loop.
        """
        self._alarm = alarm
        self._ring = ring
        self._faulted = faulted
        self._posted: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._asked: set[Future[Any]] = set()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End after what was posted before; later posts are dropped."""
        self._posted.put(None)
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        return not self._ended

    def post(self, action: Callable[[], None]) -> None:
        self._posted.put(action)

    def ask(self, question: Callable[[], T]) -> T:
        """Run a question on the loop and return its answer; raise its FedelmyError, or an error if
        the node stops first.
        """
        answer: Future[T] = Future()

        def answering() -> None:
            try:
                answer.set_result(question())
            except FedelmyError as error:
                answer.set_exception(error)
                if isinstance(error, StoreError):
                    raise  # half of it may be done, and the journal does not know
            except BaseException as error:
                answer.set_exception(error)
                raise

        with self._guard:
            if self._ended:
                raise shuts_down()
            self._asked.add(answer)
        self._posted.put(answering)
        try:
            return answer.result()
        finally:
            with self._guard:
                self._asked.discard(answer)

    def _run(self) -> None:
        try:
            while (action := self._next()) is not None:
                action()
        except StoreError as error:
            logger.error(
                "disk error: %s; the node stops, and continues from its journal when restarted",
                error,
                extra={"private": error.private},
            )
            self._faulted(error)
        except Exception as error:
            logger.exception(
                "internal error in the executor; the node stops, and continues from its journal"
                " when restarted"
            )
            self._faulted(error)
        finally:
            with self._guard:
                self._ended = True
                for answer in self._asked:
                    if not answer.done():
                        answer.set_exception(shuts_down())

    def _next(self) -> Callable[[], None] | None:
        seconds = self._alarm()
        if seconds is not None and seconds <= 0:
            return self._ring  # however much is posted meanwhile
        try:
            return self._posted.get(timeout=seconds)
        except queue.Empty:
            return self._ring
