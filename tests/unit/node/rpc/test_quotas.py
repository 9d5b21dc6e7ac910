"""What one caller may have of a node, and that it cannot take what is the others'."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from fedelmy_node.domain.errors import PeerError
from fedelmy_node.rpc import quotas
from fedelmy_node.rpc.quotas import Budget, Quotas, TooOftenError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(
    clock: Clock | None = None, *, at_once: int = 3, share: int = 2, burst: int = 100
) -> Quotas:
    budget = Budget(at_once=at_once, share=share, per_second=2, burst=burst)
    return Quotas({"transfers": budget, "control": budget}, clock or Clock())


def test_a_caller_has_its_share_and_leaves_the_rest() -> None:
    quotas = make()
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(quotas.taken("transfers", "site/east"))
        with (
            pytest.raises(PeerError, match=r"E-PEER-BUSY.*site/east.*share"),
            quotas.taken("transfers", "site/east"),
        ):
            pass
        with quotas.taken("transfers", "site/north"), quotas.taken("control", "site/east"):
            pass
    with quotas.taken("transfers", "site/east"):
        pass


def test_all_callers_together_have_the_budget() -> None:
    quotas = make()
    with ExitStack() as held:
        for name in ("site/a", "site/b", "site/c"):
            held.enter_context(quotas.taken("transfers", name))
        with (
            pytest.raises(PeerError, match=r"E-PEER-BUSY.*used up"),
            quotas.taken("transfers", "site/d"),
        ):
            pass


def test_whoever_calls_too_often_waits_and_nobody_else() -> None:
    clock = Clock()
    quotas = make(clock, burst=5)

    def call(name: str) -> bool:
        try:
            quotas.count("control", name)
        except TooOftenError as error:
            assert error.code == "E-PEER-BUSY" and name in error.message
            return False
        return True

    assert [call("operator/a") for _ in range(7)] == [True] * 5 + [False] * 2
    assert call("operator/b")
    clock.now += 1
    assert [call("operator/a") for _ in range(3)] == [True, True, False], "two a second"
    clock.now += 3600
    assert [call("operator/a") for _ in range(6)].count(True) == 5, (
        "a long pause gives no more than the burst"
    )


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "_CALLERS", 10)
    made = make()
    for number in range(1000):
        made.count("control", f"site/s{number}")
        with made.taken("control", f"site/s{number}"):
            pass
    assert len(made._left) == 10
    assert not any(made._running.values())
