"""One strict decoder for everything structured that comes from outside: TOML files, plans, trainer jobs.

A frozen dataclass is the schema. Unknown keys are refused with a suggestion, missing ones named, and
values are never converted, with one exception: an integer is a valid float.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from fedelmy_node.config.suggest import suggestion
from fedelmy_node.errors import ConfigError

__all__ = ["decode", "at_most", "encode", "canonical_json", "read_toml"]

T = TypeVar("T")
_AT_MOST: Final = "at_most"


def decode(schema: type[T], value: object, where: str = "") -> T:
    """`value`, which must have the shape of the dataclass `schema`; `where` begins the path in messages."""
    return typing.cast(T, _decode(schema, value, where))


def at_most(entries: int) -> dict[str, int]:
    """Metadata of a field: a longer list or table is refused before any of it is decoded."""
    return {_AT_MOST: entries}


def encode(value: object) -> Any:
    """The inverse of `decode`, as plain dicts, lists and scalars; fields that are None are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {name: encode(item) for name, item in pairs if item is not None}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value.value if isinstance(value, Enum) else value


def canonical_json(value: object) -> bytes:
    """The one JSON text of a value: sorted keys, no spaces, UTF-8; equal values have equal bytes."""
    plain = encode(value)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, or an error that names the file and the line."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ConfigError("E-CONFIG-MISSING", f"{path} does not exist") from error
    except IsADirectoryError as error:
        raise ConfigError("E-CONFIG-MISSING", f"{path} is a directory, not a file") from error
    except OSError as error:
        raise ConfigError("E-CONFIG-MISSING", f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, RecursionError, tomllib.TOMLDecodeError) as error:
        raise ConfigError("E-CONFIG-SYNTAX", f"{path} is not valid TOML: {error}") from error


@cache
def _hints(schema: type) -> dict[str, Any]:
    return typing.get_type_hints(schema)


def _decode(schema: Any, value: object, where: str) -> Any:  # noqa: PLR0911 - one return per kind of schema
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
        return {str(key): _decode(arguments[1], item, _join(where, str(key))) for key, item in value.items()}
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
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if name not in value and not optional:
            raise ConfigError("E-CONFIG-VALUE", f"missing key {_join(where, name)!r}", hint="Add it.")
    hints = _hints(schema)
    given = [field for name, field in fields.items() if name in value]
    for field in given:
        _check_length(field, value[field.name], where)
    decoded = {field.name: _decode(hints[field.name], value[field.name], _join(where, field.name)) for field in given}
    try:
        return schema(**decoded)
    except ConfigError as error:
        message = f"{where}: {error.message}" if where else error.message
        raise ConfigError(error.code, message, hint=error.hint) from error


def _check_length(field: dataclasses.Field[Any], value: object, where: str) -> None:
    limit = field.metadata.get(_AT_MOST)
    if limit is not None and isinstance(value, Mapping | list | tuple) and len(value) > limit:
        message = f"{_join(where, field.name)} has {len(value)} entries, which is more than {limit}"
        raise ConfigError("E-CONFIG-VALUE", message)


def _union(arguments: tuple[Any, ...], value: object, where: str) -> Any:
    choices = [choice for choice in arguments if choice is not types.NoneType]
    if value is None and len(choices) < len(arguments):
        return None
    if len(choices) == 1:
        return _decode(choices[0], value, where)
    for choice in choices:
        if type(value) is choice:
            return _decode(choice, value, where)
    raise _wrong(where, " or ".join(_noun(choice) for choice in choices), value)


def _literal(choices: tuple[Any, ...], value: object, where: str) -> Any:
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
    raise _wrong(where, " or ".join(repr(choice) for choice in choices), value)


def _tuple(arguments: tuple[Any, ...], value: object, where: str) -> Any:
    if not isinstance(value, list | tuple):
        raise _wrong(where, "a list", value)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        kinds = [arguments[0]] * len(value)
    elif len(value) == len(arguments):
        kinds = list(arguments)
    else:
        raise _wrong(where, f"a list of {len(arguments)}", value)
    return tuple(_decode(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True)))


def _scalar(schema: Any, value: object, where: str) -> Any:
    if schema is Any:
        return value
    if schema is float and type(value) in (int, float):
        return _finite(typing.cast(float, value), where)
    if schema is Path and isinstance(value, str):
        return Path(value)
    if type(value) is schema and not (isinstance(value, str) and _is_broken(value)):
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


def _is_broken(text: str) -> bool:
    """Whether a text holds half a character, which JSON can say but no file or message can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _noun(schema: Any) -> str:
    nouns = {str: "a text", int: "an integer", float: "a number", bool: "true or false", Path: "a path"}
    return nouns.get(schema, getattr(schema, "__name__", str(schema)))


def _join(where: str, key: str) -> str:
    """The path to a key; one from outside may be of any length."""
    short = key if len(key) <= 80 else f"{key[:77]}..."
    return f"{where}.{short}" if where else short


def _shown(value: object) -> str:
    """What came instead, in a few words: a list or table may be long, and is not written out to be cut."""
    if isinstance(value, Mapping | list | tuple):
        return f"a {'table' if isinstance(value, Mapping) else 'list'} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 256:
        return "a very large number"
    shown = repr(value[:80] if isinstance(value, str | bytes) else value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def _wrong(where: str, wanted: str, value: object) -> ConfigError:
    shown = _shown(value)
    return ConfigError("E-CONFIG-VALUE", f"{where or 'the value'} must be {wanted}, not {shown}")
