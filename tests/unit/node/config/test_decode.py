"""The strict decoder: what people write is refused with its place, never guessed at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedelmy_node.config.decode import (
    canonical_json,
    decode,
    encode,
    parse_json,
    read_toml,
    suggestion,
)
from fedelmy_node.domain.errors import ConfigError, FedelmyError
from fedelmy_node.domain.names import at_most
from fedelmy_node.domain.text import clean, clean_all


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    size: int
    ratio: float = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    name: str
    inner: Inner
    tags: tuple[str, ...] = ()
    pair: tuple[int, int] = (1, 2)
    mode: Literal["a", "b"] = "a"
    colour: Colour = Colour.RED
    path: Path | None = None
    limit: Literal["auto"] | float = "auto"
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)


GOOD = {"name": "x", "inner": {"size": 3}}


def test_defaults_and_nesting() -> None:
    found = decode(Outer, GOOD | {"path": "/a", "settings": {"alpha": 0.06, "n": 2, "on": True}})
    assert found.inner == Inner(size=3, ratio=0.5)
    assert found.limit == "auto" and decode(Outer, GOOD | {"limit": 7}).limit == 7.0
    assert found.path == Path("/a")
    assert found.settings == {"alpha": 0.06, "n": 2, "on": True}


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"nmae": "y"}, "E-CONFIG-KEY", ["nmae", "name"]),
        ({"inner": {"size": 3, "raito": 1}}, "E-CONFIG-KEY", ["inner.raito", "ratio"]),
        ({"inner": {}}, "E-CONFIG-VALUE", ["inner.size"]),
        ({"inner": {"size": 3.0}}, "E-CONFIG-VALUE", ["inner.size", "integer", "3.0"]),
        ({"inner": {"size": True}}, "E-CONFIG-VALUE", ["inner.size"]),
        ({"inner": {"size": 3, "ratio": "0.5"}}, "E-CONFIG-VALUE", ["inner.ratio", "number"]),
        ({"inner": {"size": 3, "ratio": float("nan")}}, "E-CONFIG-VALUE", ["inner.ratio"]),
        ({"tags": "one"}, "E-CONFIG-VALUE", ["tags", "list"]),
        ({"tags": ["one", 2]}, "E-CONFIG-VALUE", ["tags[1]"]),
        ({"pair": [1, 2, 3]}, "E-CONFIG-VALUE", ["pair"]),
        ({"mode": "c"}, "E-CONFIG-VALUE", ["mode", "'a' or 'b'"]),
        ({"limit": "soon"}, "E-CONFIG-VALUE", ["limit", "'auto' or a number"]),
        ({"limit": True}, "E-CONFIG-VALUE", ["limit", "'auto' or a number"]),
        ({"colour": "blue"}, "E-CONFIG-VALUE", ["colour", "red"]),
        ({"settings": {"x": [1]}}, "E-CONFIG-VALUE", ["settings.x"]),
    ],
)
def test_refusals_name_the_place(change: dict[str, Any], code: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        decode(Outer, GOOD | change)
    assert caught.value.code == code
    text = f"{caught.value.message} {caught.value.hint}"
    assert all(word in text for word in words), text


def test_an_integer_is_a_valid_float_but_never_the_other_way_round() -> None:
    assert decode(Inner, {"size": 1, "ratio": 2}).ratio == 2.0
    with pytest.raises(ConfigError):
        decode(Inner, {"size": 2.0})


def test_canonical_json_is_one_text_per_value() -> None:
    assert canonical_json({"b": 1, "a": [1, 2]}) == b'{"a":[1,2],"b":1}'
    assert canonical_json(decode(Outer, GOOD)) == canonical_json(
        decode(Outer, dict(reversed(GOOD.items())))
    )


def test_encode_is_the_inverse_of_decode() -> None:
    value = decode(Outer, GOOD | {"tags": ["a"], "path": "/x/y", "pair": [3, 4]})
    assert decode(Outer, json.loads(canonical_json(value))) == value
    assert "path" not in encode(decode(Outer, GOOD))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(
    _json | st.dictionaries(st.sampled_from(["name", "inner", "tags", "pair", "settings"]), _json)
)
def test_rubbish_is_refused_and_nothing_else_happens(value: object) -> None:
    try:
        decode(Outer, value)
    except FedelmyError as error:
        assert error.code.startswith("E-CONFIG")


def test_toml_mistakes_name_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    with pytest.raises(ConfigError, match="E-CONFIG-MISSING"):
        read_toml(path)
    path.write_text("a = 1\nb = = 2\n")
    with pytest.raises(ConfigError, match=r"E-CONFIG-SYNTAX.*site\.toml.*line 2"):
        read_toml(path)
    with pytest.raises(ConfigError, match="directory"):
        read_toml(tmp_path)


def test_an_integer_that_no_float_can_hold_is_no_number() -> None:
    with pytest.raises(ConfigError, match=r"rate must be a finite number, not a very large number"):
        decode(_Bounded, {"rate": 10**400, "items": []})


def test_a_list_that_is_too_long_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(ConfigError, match=r"items has 4 entries; the limit is 3"):
        decode(_Bounded, {"rate": 1, "items": [None] * 4})


def test_messages_repeat_little_of_what_came() -> None:
    for value in ({"rate": "x" * 10**6, "items": []}, {"rate": 1, "items": [], "k" * 10**6: 1}):
        with pytest.raises(ConfigError) as caught:
            decode(_Bounded, value)
        assert len(caught.value.message) < 200


@dataclass(frozen=True, kw_only=True)
class _Bounded:
    rate: float
    items: tuple[str, ...] = field(metadata=at_most(3))


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":1,"a":1}',
        b'"\\ud800"',
        b'"\xed\xa0\x80"',
        b"[" * 33 + b"]" * 33,
        b"1" * 50,
    ],
)
def test_strict_json_refuses_what_others_read_differently(text: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_strict_json_reads_what_the_standard_says() -> None:
    assert parse_json('{"a":[1,-2.5e3,null,true,"\\ud83d\\ude00é"]}'.encode()) == {
        "a": [1, -2500.0, None, True, "😀é"]
    }


def test_texts_of_others_can_be_shown() -> None:
    assert clean("a\x1b[2J\nb\u202ec\ud800") == "a [2J b c "
    assert clean("x" * 2000, 10) == "xxxxxxx..."
    assert clean_all({"a\n": ["\x07", 1, {"b": None}]}) == {"a ": [" ", 1, {"b": None}]}


def _nested(depth: int, opening: bytes, closing: bytes, inside: bytes = b"") -> bytes:
    return opening * depth + inside + closing * depth


@pytest.mark.parametrize(
    ("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]"), (b"[0,", b"]")]
)
def test_depth_is_bounded_before_anything_is_parsed(
    opening: bytes, closing: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = opening.count(b"[") + opening.count(b"{")
    assert parse_json(_nested(32 // levels, opening, closing, b"1")) is not None

    def parsed(*_: object, **__: object) -> None:
        pytest.fail("parsed before its depth was known")

    monkeypatch.setattr("json.loads", parsed)
    for depth in (32 // levels + 1, 20_000, 200_000):
        for text in (
            _nested(depth, opening, closing, b"1"),
            opening * depth,
            b'{"__metadata__":' + opening * depth,
        ):
            with pytest.raises(ValueError, match="too deep"):
                parse_json(text)


@pytest.mark.parametrize(
    "inside", ["[" * 100, "{[" * 100, '\\"' + "[" * 100, "\\\\", '\\\\\\"' + "{" * 100 + "\\n"]
)
def test_brackets_inside_strings_are_no_depth(inside: str) -> None:
    text = f'{{"{inside}": ["{inside}", "x"], "]]]": "{inside}"}}'.encode()
    assert parse_json(text) == json.loads(text)


def test_a_string_that_never_ends_takes_no_time() -> None:
    for text in (b'["' + b"\\a" * 500_000, b'["' + b"[" * 1_000_000, b'"\\' * 300_000):
        with pytest.raises(ValueError):
            parse_json(text)


@given(
    st.recursive(
        st.text() | st.integers(-5, 5), lambda inner: st.lists(inner, max_size=3), max_leaves=10
    )
)
def test_whatever_is_written_is_read_again(value: object) -> None:
    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("fedelym", "Did you mean 'fedelmy'?"),
        ("FedELMY", "Did you mean 'fedelmy'?"),
        ("resnet", "Strategies: fedelmy, FedX."),
        ("fedx", "Did you mean 'FedX'?"),
    ],
)
def test_a_close_name_is_suggested_whatever_its_case(name: str, advice: str) -> None:
    assert suggestion(name, ["fedelmy", "FedX"], "Strategies") == advice
