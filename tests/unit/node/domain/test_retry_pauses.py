"""Back-off: delays double up to a limit, start over after progress, and are spread by jitter."""

from __future__ import annotations

from fedelmy_node.domain.retry_pauses import Backoff


def test_delays_double_up_to_the_limit_and_start_over() -> None:
    backoff = Backoff((0.5, 3.0), uniform=lambda low, high: (low + high) / 2)
    assert [backoff.next_delay() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert [backoff.next_delay() for _ in range(2)] == [0.5, 1.0]


def test_jitter_is_a_quarter_and_does_not_accumulate() -> None:
    lowest, highest = Backoff((1.0, 8.0), uniform=min), Backoff((1.0, 8.0), uniform=max)
    assert [lowest.next_delay() for _ in range(4)] == [0.75, 1.5, 3.0, 6.0]
    assert [highest.next_delay() for _ in range(4)] == [1.25, 2.5, 5.0, 10.0]


def test_delays_are_random_by_default() -> None:
    delays = {Backoff((1.0, 1.0)).next_delay() for _ in range(20)}
    assert len(delays) > 1 and all(0.75 <= delay <= 1.25 for delay in delays)
