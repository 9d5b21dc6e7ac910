"""The learning rate of every step of a fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from fedelmy_node.domain.federation import Training
from fedelmy_node.training.schedule import learning_rate

EPOCHS, PER_EPOCH = 6, 5


def rates(epochs: int = EPOCHS, per_epoch: int = PER_EPOCH, **settings: Any) -> list[float]:
    training = Training(epochs=EPOCHS, learning_rate=0.4, **settings)
    steps = range(epochs * per_epoch)
    return [learning_rate(training, step, epochs=epochs, per_epoch=per_epoch) for step in steps]


def torchs(make: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
    scheduler, found = make(optimizer), []
    for _ in range(EPOCHS * PER_EPOCH):
        found.append(float(scheduler.get_last_lr()[0]))
        optimizer.step()
        scheduler.step()
    return found


def test_constant_is_the_setting_itself() -> None:
    assert set(rates()) == {0.4}


def test_cosine_is_torchs_over_all_steps() -> None:
    steps = EPOCHS * PER_EPOCH
    wanted = torchs(lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, steps))
    assert rates(schedule="cosine") == pytest.approx(wanted)


def test_step_is_torchs_with_a_period_in_epochs() -> None:
    wanted = torchs(lambda optimizer: lr_scheduler.StepLR(optimizer, 2 * PER_EPOCH, 0.5))
    assert rates(schedule="step", schedule_period=2, schedule_factor=0.5) == pytest.approx(wanted)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_warm_up_rises_to_the_rate_and_the_schedule_follows(schedule: str) -> None:
    found = rates(schedule=schedule, schedule_warmup=0.8)
    assert found[:4] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    rest = rates(schedule=schedule, epochs=1, per_epoch=EPOCHS * PER_EPOCH - 4)
    assert found[4:] == pytest.approx(rest)


def test_steps_are_counted_from_the_start_of_the_fit_also_with_a_warm_up() -> None:
    found = rates(schedule="step", schedule_period=2, schedule_warmup=1.0)
    assert found[PER_EPOCH] == 0.4 and found[2 * PER_EPOCH] == pytest.approx(0.04)


def test_a_fit_that_is_shorter_than_the_warm_up_never_gets_to_the_full_rate() -> None:
    """FedELMY's first fit may have fewer epochs than the others."""
    found = rates(epochs=1, schedule="cosine", schedule_warmup=2.0)
    assert found == pytest.approx([0.04, 0.08, 0.12, 0.16, 0.2])
    assert len(rates(epochs=2, schedule="cosine", schedule_warmup=2.0)) == 2 * PER_EPOCH


def test_no_rate_is_negative_or_above_the_setting() -> None:
    for warmup in (0.0, 0.1, 3.0):
        assert all(0 < rate <= 0.4 for rate in rates(schedule="cosine", schedule_warmup=warmup))
