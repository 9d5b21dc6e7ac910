"""The strict decoder for all structured input: TOML, JSON, plans, trainer jobs.

Python's JSON parser accepts more than the standard: NaN and infinity, numbers of any length,
duplicate keys, UTF-16, lone surrogates. Each could make two programs read different values from the
same signed text, so all are refused here.

A frozen dataclass is the schema. Unknown keys are refused with a suggestion, missing keys are
reported, and values are never converted, with one exception: an integer is a valid float.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, TypeVar

from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.names import AT_MOST, LATER


def suggestion(name: str, known: Iterable[str], plural: str) -> str:
    """Return `Did you mean 'mlp'?`, or `Models: mlp, cnn.` without a close match."""
    names = list(known)
    return _close(name, names) or f"{plural}: {', '.join(names) or 'none'}."


def _close(name: str, names: Iterable[Any]) -> str:
    """Return `Did you mean 'mlp'?`; empty without a close match."""
    import difflib  # only needed after a mistake

    texts = [known for known in names if isinstance(known, str)]
    folded = {known.casefold(): known for known in reversed(texts)}
    close = difflib.get_close_matches(name[:100].casefold(), folded, n=1)
    return f"Did you mean {folded[close[0]]!r}?" if close else ""


MAX_DEPTH: Final = 32
"""Nesting of lists and tables (a plan has 5); recursive functions may rely on it."""
MAX_VALUES: Final = 400_000
"""More than the longest chain that fits into a message; each value costs memory."""
_NUMBER_CHARACTERS: Final = 40
"""Enough for every 64-bit integer and every double."""
_INTEGERS: Final = range(-(2**63), 2**64)
_LARGE: Final = re.compile(r"[0-9]{19}|[eE][+-]?[0-9]{3}")
"""A number that may be too large; only then are the slow number hooks used."""
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_NO_BRACKETS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[^][{}"]++|"', re.DOTALL)
"""Whole strings, and everything else that is not a bracket."""
_DEPTH_CHANGES: Final = tuple(1 if chr(byte) in "[{" else -1 for byte in range(256))


def parse_json(data: bytes, max_values: int = MAX_VALUES) -> Any:
    """Parse UTF-8 JSON strictly; raise ValueError with a short text for any violation."""
    if data.count(b",") > max_values:  # commas separate all values of lists and tables
        raise ValueError("it has too many values")
    if _is_too_deep(data):
        raise ValueError("its lists and tables are nested too deeply")
    try:
        text = data.decode("utf-8")
        hooks: dict[str, Any] = {"object_pairs_hook": _table, "parse_constant": _constant}
        if _LARGE.search(text):
            hooks |= {"parse_int": _integer, "parse_float": _float}
        value = json.loads(text, **hooks)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError as error:
        raise ValueError("it is not UTF-8 text") from error
    return value


def _is_too_deep(data: bytes) -> bool:
    """Check before parsing, because parsers recurse; one pass without copying the values."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _NO_BRACKETS.sub(b"", data)
    return max(accumulate(map(_DEPTH_CHANGES.__getitem__, brackets)), default=0) > MAX_DEPTH


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key occurs twice")
    return table


def _constant(name: str) -> object:
    raise ValueError(f"{name} is not valid JSON")


def _integer(text: str) -> int:
    if len(text) > _NUMBER_CHARACTERS or (number := int(text)) not in _INTEGERS:
        raise ValueError("a number is too large")
    return number


def _float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError("a number is too large")
    return number


T = TypeVar("T")


def decode(schema: type[T], value: object, where: str = "") -> T:
    """Decode `value` into the dataclass `schema`; `where` prefixes paths in messages."""
    return typing.cast(T, _decode(schema, value, where))


def encode(value: object) -> Any:
    """Convert to plain dicts, lists and scalars, the inverse of `decode`.

    Fields that are None are omitted, and those marked `later` that have their default.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {field.name: encode(item) for field, item in pairs if not _is_omitted(field, item)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value.value if isinstance(value, Enum) else value


def _is_omitted(field: dataclasses.Field[Any], value: object) -> bool:
    if value is None or not field.metadata.get(LATER):
        return value is None
    made = field.default_factory
    return bool(value == (field.default if made is dataclasses.MISSING else made()))


def canonical_json(value: object) -> bytes:
    """Return the unique JSON of a value: sorted keys, no spaces, UTF-8."""
    plain, compact = encode(value), (",", ":")
    return json.dumps(
        plain, sort_keys=True, separators=compact, ensure_ascii=False, allow_nan=False
    ).encode()


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; errors name the file and the line."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ConfigError("E-CONFIG-MISSING", f"{path} does not exist") from error
    except IsADirectoryError as error:
        raise ConfigError("E-CONFIG-MISSING", f"{path} is a directory, not a file") from error
    except OSError as error:
        raise ConfigError("E-CONFIG-MISSING", f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, RecursionError, tomllib.TOMLDecodeError) as error:
        raise ConfigError("E-CONFIG-SYNTAX", f"{path} is not valid TOML: {error}") from error


@cache
def _hints(schema: type) -> dict[str, Any]:
    return typing.get_type_hints(schema)


def _decode(schema: Any, value: object, where: str) -> Any:  # noqa: PLR0911 - one per schema kind
    while isinstance(schema, typing.NewType):
        schema = schema.__supertype__
    origin, arguments = typing.get_origin(schema), typing.get_args(schema)
    if dataclasses.is_dataclass(schema):
        return _dataclass(typing.cast(type, schema), value, where)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments, value, where)
    if origin is typing.Literal:
        return _literal(arguments, value, where)
    if origin is tuple:
        return _tuple(arguments, value, where)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(where, "a table", value)
        items = ((str(key), item) for key, item in value.items())
        return {key: _decode(arguments[1], item, _join(where, key)) for key, item in items}
    if isinstance(schema, type) and issubclass(schema, Enum):
        return schema(_literal(tuple(member.value for member in schema), value, where))
    return _scalar(schema, value, where)


def _dataclass(schema: type, value: object, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(where, "a table", value)
    fields = {field.name: field for field in dataclasses.fields(schema)}
    for key in value:
        if key not in fields:
            hint = suggestion(str(key), fields, "Known keys")
            raise ConfigError("E-CONFIG-KEY", f"unknown key {_join(where, str(key))!r}", hint=hint)
    for name, field in fields.items():
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and name not in value:
            message = f"missing key {_join(where, name)!r}"
            raise ConfigError("E-CONFIG-VALUE", message, hint="Add it.")
    given = [name for name in fields if name in value]
    for name in given:
        _check_length(fields[name], value[name], where)
    hints = _hints(schema)
    decoded = {name: _decode(hints[name], value[name], _join(where, name)) for name in given}
    try:
        return schema(**decoded)
    except ConfigError as error:
        message = f"{where}: {error.message}" if where else error.message
        raise ConfigError(error.code, message, hint=error.hint) from error


def _check_length(field: dataclasses.Field[Any], value: object, where: str) -> None:
    limit = field.metadata.get(AT_MOST)
    if limit is not None and isinstance(value, Mapping | list | tuple) and len(value) > limit:
        message = f"{_join(where, field.name)} has {len(value)} entries; the limit is {limit}"
        raise ConfigError("E-CONFIG-VALUE", message)


def _union(arguments: tuple[Any, ...], value: object, where: str) -> Any:
    choices = [choice for choice in arguments if choice is not types.NoneType]
    if value is None and len(choices) < len(arguments):
        return None
    if len(choices) == 1:
        return _decode(choices[0], value, where)
    for choice in choices:
        if _may_be(choice, value):
            return _decode(choice, value, where)
    raise _wrong(where, " or ".join(_noun(choice) for choice in choices), value)


def _may_be(choice: Any, value: object) -> bool:
    """Whether `choice` is the member of a union to decode `value` with."""
    origin = typing.get_origin(choice)
    if origin is typing.Literal:
        return isinstance(value, str) and value in typing.get_args(choice)
    if origin is tuple:
        return isinstance(value, list | tuple)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping)
    return type(value) is choice or (choice is float and type(value) is int)


def _literal(choices: tuple[Any, ...], value: object, where: str) -> Any:
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
    error = _wrong(where, " or ".join(repr(choice) for choice in choices), value)
    if isinstance(value, str):
        error.hint = _close(value, choices) or error.hint
    raise error


def _tuple(arguments: tuple[Any, ...], value: object, where: str) -> Any:
    if not isinstance(value, list | tuple):
        raise _wrong(where, "a list", value)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        kinds = [arguments[0]] * len(value)
    elif len(value) == len(arguments):
        kinds = list(arguments)
    else:
        raise _wrong(where, f"a list of {len(arguments)}", value)
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(_decode(kind, item, f"{where}[{i}]") for i, (kind, item) in pairs)


def _scalar(schema: Any, value: object, where: str) -> Any:
    if schema is Any:
        return value
    if schema is float and type(value) in (int, float):
        return _finite(typing.cast(float, value), where)
    if schema is Path and isinstance(value, str):
        return Path(value)
    if type(value) is schema and not (isinstance(value, str) and _has_surrogate(value)):
        return value
    raise _wrong(where, _noun(schema), value)


def _finite(value: float, where: str) -> float:
    try:
        number = float(value)
    except OverflowError:  # an integer may be larger than any float
        number = math.inf
    if not math.isfinite(number):
        raise _wrong(where, "a finite number", value)
    return number


def _has_surrogate(text: str) -> bool:
    """Return whether a text contains a lone surrogate, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


_NOUNS: Final = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    Path: "a path",
}


def _noun(schema: Any) -> str:
    if typing.get_origin(schema) is typing.Literal:
        return " or ".join(repr(choice) for choice in typing.get_args(schema))
    if typing.get_origin(schema) in (dict, Mapping):
        return "a table"
    if typing.get_origin(schema) is tuple:
        return "a list"
    return _NOUNS.get(schema, getattr(schema, "__name__", str(schema)))


def _join(where: str, key: str) -> str:
    short = key if len(key) <= 80 else f"{key[:77]}..."
    return f"{where}.{short}" if where else short


def _shown(value: object) -> str:
    """Describe a value briefly, without formatting a long list or table first."""
    if isinstance(value, Mapping | list | tuple):
        return f"a {'table' if isinstance(value, Mapping) else 'list'} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 256:
        return "a very large number"
    shown = repr(value[:80] if isinstance(value, str | bytes) else value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def _wrong(where: str, wanted: str, value: object) -> ConfigError:
    message = f"{where or 'the value'} must be {wanted}, not {_shown(value)}"
    return ConfigError("E-CONFIG-VALUE", message)
