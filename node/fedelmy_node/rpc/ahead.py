"""An iterator that is worked off a few items ahead, on a thread of its own: two stages of a pipeline at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Generic, Self, TypeVar

__all__ = ["Ahead"]

T = TypeVar("T")


class Ahead(Generic[T]):
    """The items of `source`, at most `depth` of them waiting. What the source raises comes after what it gave."""

    def __init__(self, source: Iterator[T], depth: int, name: str) -> None:
        self._source = source
        self._depth = depth
        self._changed = threading.Condition()
        self._waiting: deque[T] = deque()
        self._ended = False
        self._closed = False
        self._error: BaseException | None = None
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if self._waiting:
                self._changed.notify()
                return self._waiting.popleft()
        if self._error is not None:
            raise self._error
        raise StopIteration

    def close(self) -> None:
        """No more items are wanted; the source is left where it is, at most one item later."""
        with self._changed:
            self._closed = self._ended = True
            self._waiting.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            for item in self._source:
                with self._changed:
                    self._changed.wait_for(lambda: len(self._waiting) < self._depth or self._closed)
                    if self._closed:
                        return
                    self._waiting.append(item)
                    self._changed.notify()
        except BaseException as error:  # noqa: BLE001 -- told to whoever iterates
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
