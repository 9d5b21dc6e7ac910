"""What an operation declares of its state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.step_traits import BUILT_IN, TRAIN
from tests.support.methods import PLAIN, STATEFUL


def test_a_state_needs_a_spec_and_a_spec_the_trait() -> None:
    with pytest.raises(
        ConfigError, match=r"E-CONFIG-EXTENSION.*with keeps_state.* must also have a spec"
    ):
        replace(STATEFUL, state=None)
    with pytest.raises(
        ConfigError, match=r"E-CONFIG-EXTENSION.*a spec of its state must also have keeps"
    ):
        replace(STATEFUL, traits=BUILT_IN[TRAIN])
    assert replace(PLAIN, traits=STATEFUL.traits, state=STATEFUL.state).state is STATEFUL.state
