"""Errors on the wire are bounded, survive the way, and are never trusted."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedelmy_node.domain.errors import CATALOGUE, FedelmyError
from fedelmy_node.rpc.error_mapping import (
    PROBLEM_KEY,
    Problem,
    decode_problem,
    encode_problem,
    map_errors,
)


class Metadatum:
    def __init__(self, key: str, value: bytes) -> None:
        self.key, self.value = key, value


class Failed(grpc.RpcError):
    """What a call raises in a client."""

    def __init__(self, code: grpc.StatusCode, metadata: Sequence[Metadatum] = ()) -> None:
        self._code, self._metadata = code, metadata

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "some\x1b[31mdetails"

    def trailing_metadata(self) -> Sequence[Metadatum]:
        return self._metadata


@given(message=st.text(max_size=5000), hint=st.text(max_size=5000))
def test_problems_are_bounded_and_survive(message: str, hint: str) -> None:
    encoded = encode_problem(Problem(code="E-TRANSFER-HASH", message=message, hint=hint))
    decoded = decode_problem(encoded)
    assert len(encoded) <= 2048
    assert decoded is not None and decoded.code == "E-TRANSFER-HASH"
    if len(message) + len(hint) < 100 and message.isprintable():
        assert decoded.message == message


@given(
    st.binary(max_size=3000) | st.just(b"[" * 2000) | st.just(b'{"code":1,"message":"","hint":""}')
)
def test_what_is_not_a_problem_is_none(data: bytes) -> None:
    assert decode_problem(data) is None


def test_every_code_travels_under_a_real_status() -> None:
    for code, entry in CATALOGUE.items():
        assert entry.status in grpc.StatusCode.__members__, code


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("UNAVAILABLE", "E-PEER-UNREACHABLE"),
        ("CANCELLED", "E-PEER-UNREACHABLE"),
        ("DEADLINE_EXCEEDED", "E-PEER-UNREACHABLE"),
        ("UNIMPLEMENTED", "E-PEER-CONTRACT"),
        ("INTERNAL", "E-PEER-PROTOCOL"),
        ("UNKNOWN", "E-PEER-PROTOCOL"),
        ("RESOURCE_EXHAUSTED", "E-PEER-PROTOCOL"),
    ],
)
def test_bare_statuses_have_codes(status: str, code: str) -> None:
    with pytest.raises(FedelmyError, match=f"{code}: south") as raised, map_errors("south"):
        raise Failed(grpc.StatusCode[status])
    assert "\x1b" not in str(raised.value)


def test_an_unknown_code_of_a_newer_peer_is_shown() -> None:
    problem = encode_problem(Problem(code="E-NEWER-THING", message="what", hint="do"))
    with (
        pytest.raises(FedelmyError, match=r"E-INTERNAL: E-NEWER-THING: south: what"),
        map_errors("south"),
    ):
        raise Failed(grpc.StatusCode.INTERNAL, [Metadatum(PROBLEM_KEY, problem)])


def test_a_damaged_problem_leaves_the_status() -> None:
    with pytest.raises(FedelmyError, match="E-PEER-UNREACHABLE"), map_errors("south"):
        raise Failed(grpc.StatusCode.UNAVAILABLE, [Metadatum(PROBLEM_KEY, b"{}")])
