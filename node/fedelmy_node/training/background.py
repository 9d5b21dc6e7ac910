"""Work that training must not wait for: one thread that does the newest of what it is given."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Newest"]

T = TypeVar("T")


class Newest(Generic[T]):
    """Does one item at a time; of those that come meanwhile only the newest waits. At most two are ever alive."""

    def __init__(self, do: Callable[[T], None], failed: Callable[[Exception], None], name: str) -> None:
        self._do = do
        self._failed = failed
        self._changed = threading.Condition()
        self._waiting: T | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def offer(self, make: Callable[[], T]) -> None:
        """Have the item that `make` gives done, instead of one that still waits."""
        with self._changed:
            self._waiting = None  # before the new one is made: three would need the memory of three
        item = make()
        with self._changed:
            self._waiting = item
            self._changed.notify()

    def close(self, *, finish: bool) -> None:
        """End when the item under way is done, and before that the waiting one, too, if `finish`."""
        with self._changed:
            self._closing = True
            if not finish:
                self._waiting = None
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (item := self._take()) is not None:
            try:
                self._do(item)
            except Exception as error:  # noqa: BLE001 - the boundary of a thread; whoever hears of it logs it
                self._failed(error)
            del item  # or it would live until the next one comes

    def _take(self) -> T | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._closing)
            item, self._waiting = self._waiting, None
            return item
