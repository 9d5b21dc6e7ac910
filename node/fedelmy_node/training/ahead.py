"""Making things before they are asked for, on a thread: the disk is read while the device computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

__all__ = ["made_ahead"]

T = TypeVar("T")
_DEPTH: Final = 2
"""Made and not yet used, at most: one that is ready, and one under way."""


def made_ahead(make: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]:
    """`make` of every number, in order; what it raises is raised at its place."""
    rest = iter(numbers)
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as thread:
        coming: deque[Future[T]] = deque()
        while True:
            for number in rest:
                coming.append(thread.submit(make, number))
                if len(coming) > _DEPTH:
                    break
            if not coming:
                return
            yield coming.popleft().result()
