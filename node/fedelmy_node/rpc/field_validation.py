"""Validation of message fields: names, printable texts, counts and times.

`from_message` builds domain objects with these rules. An invalid request gets the error code of
what it asks for. An invalid answer is always E-PEER-PROTOCOL.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import cache, partial, wraps
from typing import Any, Final, ParamSpec, TypeVar, get_type_hints

from google.protobuf.message import Message

from fedelmy_node.config.decode import parse_json
from fedelmy_node.domain.errors import (
    ConfigError,
    IdentityError,
    PeerError,
    RunError,
    TransferError,
)
from fedelmy_node.domain.events import EdgeState, RunState, StepState
from fedelmy_node.domain.names import (
    Address,
    EdgeId,
    RunId,
    SiteName,
    StepId,
    known_edge,
    public_address,
    run_id,
    site_name,
    step_id,
)
from fedelmy_node.domain.text import clean, clean_all

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=Message)

MAX_SIGNATURE_BYTES: Final = 512
"""Limit of a signature; ECDSA P-256 needs 72 bytes."""
MAX_BEGIN_BYTES: Final = 1024 * 1024
"""Limit of an offer: 10,000 tensors and the origin. An empty list entry has two bytes on the wire
and fifty in memory, so 4 MiB could become 100 MiB.
"""
MAX_LABELS: Final = 1000
"""Limit of the contracts and of the peers in a description."""
_LABEL_CHARACTERS: Final = 200
_HEX: Final = re.compile(r"[0-9a-f]{64}|")


def answer(convert: Callable[P, T]) -> Callable[P, T]:
    """Decorate a reader of answers: invalid ones are the peer's error, not our configuration's."""

    @wraps(convert)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return convert(*args, **kwargs)
        except (ConfigError, TransferError, RunError, IdentityError) as error:
            message = f"invalid answer: {clean(error.message, 300)}"
            raise PeerError("E-PEER-PROTOCOL", message) from error

    return checked


def check_length(items: Sized, limit: int, what: str) -> None:
    """Refuse a list that is too long before reading it."""
    if len(items) > limit:
        raise ConfigError("E-CONFIG-VALUE", f"too many {what}: {len(items)}; the limit is {limit}")


def requested_run(text: str) -> RunId:
    """Return the run of a request; an invalid name is an unknown run."""
    try:
        return run_id(text)
    except ConfigError as error:
        raise RunError("E-RUN-UNKNOWN", error.message) from error


def requested_edge(text: str) -> EdgeId:
    try:
        return known_edge(text)
    except ConfigError as error:
        raise TransferError("E-TRANSFER-OFFER", error.message) from error


def digest(text: str) -> str:
    """A SHA-256 in hexadecimal, or empty."""
    if not _HEX.fullmatch(text):
        raise ConfigError("E-CONFIG-VALUE", "invalid digest")
    return text


def count(number: int) -> int:
    if number < 0:
        raise ConfigError("E-CONFIG-VALUE", "a count is negative")
    return number


def seconds(number: float) -> float:
    """A time or a duration, up to the year 5138."""
    if not (math.isfinite(number) and 0 <= number < 1e11):
        raise ConfigError("E-CONFIG-VALUE", "invalid time")
    return number


def label(text: str) -> str:
    """A short text for people: a version, a device, a code."""
    return clean(text, _LABEL_CHARACTERS)


def labels(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(label, texts))


def sentences(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(clean, texts))


def advertised(text: str) -> Address | None:
    """The address that a node advertises, if any."""
    return public_address(text) if text else None


def bounded(decode: Callable[[bytes], T], limit: int) -> Callable[[bytes], T]:
    """Return a decoder that refuses messages above a size."""

    def decoded(message: bytes) -> T:
        if len(message) > limit:
            reason = f"a message of {len(message)} bytes is too long; the limit is {limit}"
            raise PeerError("E-PEER-PROTOCOL", reason)
        return decode(message)

    return decoded


@answer
def read_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object and make its texts printable."""
    try:
        value = parse_json(data)
    except ValueError as error:
        message = f"invalid JSON in the answer: {clean(str(error), 200)}"
        raise PeerError("E-PEER-PROTOCOL", message) from error
    if not isinstance(value, dict):
        raise PeerError("E-PEER-PROTOCOL", "the JSON in the answer is not an object")
    shown: dict[str, Any] = clean_all(value)
    return shown


def known(choices: Iterable[T], text: str) -> T:
    """Return the enumeration member or literal that equals a text; refuse newer ones."""
    for choice in choices:
        if choice == text:
            return choice
    message = f"the node reports {label(text)!r}, which this version does not know"
    raise PeerError("E-PEER-CONTRACT", message)


run_state: Final = partial(known, RunState)

_RULES: Final[Mapping[Any, Callable[[Any], Any]]] = {
    str: label,
    int: count,
    float: seconds,
    bool: bool,
    tuple[str, ...]: labels,
    Mapping[str, Any]: read_object,
    RunId: run_id,
    SiteName: site_name,
    StepId: step_id,
    EdgeId: known_edge,
    **{kind: partial(known, kind) for kind in (RunState, StepState, EdgeState)},
}
"""How `from_message` validates a field by its type, unless the caller gives a rule."""
_hints: Final[Callable[[Any], dict[str, Any]]] = cache(get_type_hints)


def to_message(kind: type[M], source: object, /, **converted: Any) -> M:
    """Build a message; fields that are not in `converted` are copied from `source` by name."""
    names = [name for name in kind.DESCRIPTOR.fields_by_name if name not in converted]
    return kind(**{name: getattr(source, name) for name in names}, **converted)


def from_message(kind: type[T], message: Message, /, **rules: Callable[[Any], Any]) -> T:
    """Build a dataclass; each field passes the rule given by name, or the rule of its type.

    Fields that the message does not have keep their defaults.
    """
    names = message.DESCRIPTOR.fields_by_name
    return kind(
        **{
            name: (rules.get(name) or _RULES[hint])(getattr(message, name))
            for name, hint in _hints(kind).items()
            if name in names
        }
    )
