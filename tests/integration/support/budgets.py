"""Budgets for tests that are about something else: a number of calls at once, of whomever, however
often.
"""

from __future__ import annotations

from fedelmy_node.rpc.quotas import Budget


def budgets(**at_once: int) -> dict[str, Budget]:
    return {
        name: Budget(at_once=size, share=size, per_second=1e6, burst=1_000_000)
        for name, size in at_once.items()
    }
