"""Prefetch the items of an iterator on a thread, so that two stages of a pipeline overlap."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """The items of `source`, up to `depth` of them buffered; its exception follows the last one."""

    def __init__(self, source: Iterator[T], depth: int, name: str) -> None:
        self._source = source
        self._depth = depth
        self._changed = threading.Condition()
        self._buffer: deque[T] = deque()
        self._ended = False
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._fill, name=name, daemon=True)
        self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._buffer or self._ended)
            if self._buffer:
                self._changed.notify()
                return self._buffer.popleft()
        if self._error is not None:
            raise self._error
        raise StopIteration

    def close(self, *, wait: bool = False) -> None:
        """Discard the buffer and stop after the current item; `wait` until the thread has ended."""
        with self._changed:
            self._closed = self._ended = True
            self._buffer.clear()
            self._changed.notify_all()
        if wait:
            self._thread.join()

    def _fill(self) -> None:
        try:
            for item in self._source:
                with self._changed:
                    self._changed.wait_for(lambda: len(self._buffer) < self._depth or self._closed)
                    if self._closed:
                        return
                    self._buffer.append(item)
                    self._changed.notify()
        except BaseException as error:  # noqa: BLE001 - raised again by __next__
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()


def prefetched(source: Iterator[T], depth: int = 2) -> Iterator[T]:
    """Prefetch for as long as the returned generator is in use."""
    items = Prefetcher(source, depth, "prefetch")
    try:
        yield from items
    finally:
        items.close(wait=True)
