"""What one decision changes in the journal."""

from __future__ import annotations

import pytest

from fedelmy_node.domain.errors import RunError
from fedelmy_node.domain.events import RunState, StepState
from fedelmy_node.domain.names import StepId
from fedelmy_node.run.outputs import is_complete
from tests.support.journal_writes import end_run
from tests.unit.node.run.site import Site


def test_a_run_ends_with_its_steps_or_not_at_all() -> None:
    b = Site("b")
    b.received("train.1@a>train.2@b")
    b.done("train.2@b")
    end_run(b.journal, b.run, RunState.CANCELLED, message="enough")
    states = {step: known.state for step, known in b.record.steps.items()}
    assert states.pop(StepId("train.2@b")) == StepState.DONE
    assert set(states.values()) == {StepState.CANCELLED}
    assert not is_complete(b.record)


def test_a_run_that_came_to_life_is_not_prepared_again() -> None:
    b = Site("b")
    with pytest.raises(RunError, match="E-RUN-CONFLICT"):
        b.journal.add_run(b.record.prepared)
