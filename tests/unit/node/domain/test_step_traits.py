"""Traits that contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from fedelmy_node.config.decode import decode
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.step_traits import Traits

TRAINS = "an operation that trains must have reads_data and has_output"
SECRET = "an operation with from_secret has an output that stays, and reads no data"
KEEPS = "an operation with keeps_state must have trains"


@pytest.mark.parametrize(
    ("traits", "message"),
    [
        ({"trains": True, "reads_data": False}, TRAINS),
        ({"trains": True, "has_output": False}, TRAINS),
        ({"keeps_state": True}, KEEPS),
        ({"keeps_state": True, "gathers": True, "reads_data": False}, KEEPS),
        ({"from_secret": True, "reads_data": False}, SECRET),
        ({"from_secret": True, "leaves": ""}, SECRET),
    ],
)
def test_traits_that_contradict_each_other_are_refused(
    traits: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"E-CONFIG-VALUE: operations.collect: {message}"):
        decode(Traits, traits, "operations.collect")


@pytest.mark.parametrize("traits", [{"trains": True}, {"trains": True, "keeps_state": True}, {}])
def test_consistent_traits_are_accepted(traits: dict[str, Any]) -> None:
    assert decode(Traits, traits) == Traits(**traits)
