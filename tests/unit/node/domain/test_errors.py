"""The catalogue is total: every code has its class, status and advice, and every code is used."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest

import fedelmy_launcher
import fedelmy_node
from fedelmy_node.domain import errors
from fedelmy_node.domain.errors import (
    CATALOGUE,
    ConfigError,
    DataError,
    FedelmyError,
    InternalError,
    error_from_code,
)

PACKAGES = [Path(package.__file__ or "").parent for package in (fedelmy_node, fedelmy_launcher)]
SOURCES = {path: path.read_text("utf-8") for root in PACKAGES for path in root.rglob("*.py")}
CODE = re.compile(r"E-[A-Z]+(?:-[A-Z]+)?\b")


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_entry_is_complete(code: str) -> None:
    entry = CATALOGUE[code]
    assert CODE.fullmatch(code)
    assert entry.status in grpc.StatusCode.__members__ and entry.status != "OK"
    assert entry.advice.endswith(".") and len(entry.advice) < 140
    error = entry.kind(code, "something is wrong")
    assert error.hint == entry.advice
    assert str(error) == f"{code}: something is wrong"
    assert 2 <= error.exit_code <= 127


def test_every_code_in_the_source_is_in_the_catalogue_and_the_other_way_round() -> None:
    used = {
        code
        for path, text in SOURCES.items()
        if path.name != "errors.py"
        for code in re.findall(r"\"(E-[A-Z]+(?:-[A-Z]+)?)\"", text)
    }
    assert used - set(CATALOGUE) == set()
    assert set(CATALOGUE) - used == set()


def test_classes_have_exit_codes_of_their_own() -> None:
    kinds = {entry.kind for entry in CATALOGUE.values()}
    assert len({kind.exit_code for kind in kinds}) == len(kinds)
    assert errors.EXIT_SUBSET not in {kind.exit_code for kind in kinds}


def test_a_code_belongs_to_one_class() -> None:
    with pytest.raises(AssertionError):
        ConfigError("E-DATA-EMPTY", "wrong class")
    with pytest.raises(AssertionError):
        FedelmyError("E-NO-SUCH", "unknown")


def test_errors_of_other_processes() -> None:
    assert isinstance(error_from_code("E-DATA-EMPTY", "no files"), DataError)
    unknown = error_from_code("E-FUTURE-THING", "what?")
    assert isinstance(unknown, InternalError)
    assert "E-FUTURE-THING" in unknown.message
