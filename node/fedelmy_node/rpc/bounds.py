"""What the fields of a message may hold: names by their rule, texts that can be shown, numbers to count with.

`convert` puts domain objects together from these. A request that breaks a rule is refused with the code of what was
asked for; an answer that does is E-PEER-PROTOCOL, whoever gave it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sized
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from fedelmy_node.config.strict_json import parse_json
from fedelmy_node.domain.names import Address, EdgeId, RunId, known_edge, reachable_place, run_id
from fedelmy_node.domain.texts import clean, clean_all
from fedelmy_node.errors import ConfigError, IdentityError, PeerError, RunError, TransferError

__all__ = [
    "MAX_SIGNATURE_BYTES", "MAX_BEGIN_BYTES",
    "answer", "few", "read_object", "asked_run", "asked_edge", "digest", "count", "seconds", "label",
    "advertised", "bounded",
]  # fmt: skip

P = ParamSpec("P")
T = TypeVar("T")

MAX_SIGNATURE_BYTES: Final = 512
"""One of ECDSA P-256 has 72."""
MAX_BEGIN_BYTES: Final = 1024 * 1024
"""Of an offer: 10,000 tensors, and whose work it is. An empty entry of a list has two bytes on the wire and fifty in
memory, so 4 MiB could become 100 MiB."""
_LABEL_CHARACTERS: Final = 200
_HEX: Final = re.compile(r"[0-9a-f]{64}|")


def answer(convert: Callable[P, T]) -> Callable[P, T]:
    """Decorates what reads an answer: what is wrong with it is the peer's fault, not this site's configuration."""

    @wraps(convert)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return convert(*args, **kwargs)
        except (ConfigError, TransferError, RunError, IdentityError) as error:
            raise PeerError("E-PEER-PROTOCOL", f"the answer is not usable: {clean(error.message, 300)}") from error

    return checked


def few(items: Sized, limit: int, what: str) -> None:
    """Refuse a list that is too long, before it is looked at."""
    if len(items) > limit:
        raise ConfigError("E-CONFIG-VALUE", f"{len(items)} {what} are more than {limit}")


def asked_run(text: str) -> RunId:
    """The run that a request is about; a name that no run can have is one that this site does not know."""
    try:
        return run_id(text)
    except ConfigError as error:
        raise RunError("E-RUN-UNKNOWN", error.message) from error


def asked_edge(text: str) -> EdgeId:
    """The edge that a request is about."""
    try:
        return known_edge(text)
    except ConfigError as error:
        raise TransferError("E-TRANSFER-OFFER", error.message) from error


def digest(text: str) -> str:
    """A SHA-256 in hexadecimal, or nothing."""
    if not _HEX.fullmatch(text):
        raise ConfigError("E-CONFIG-VALUE", "a digest is not one")
    return text


def count(number: int) -> int:
    """A number of bytes or other things."""
    if number < 0:
        raise ConfigError("E-CONFIG-VALUE", "a count is negative")
    return number


def seconds(number: float) -> float:
    """A time or a duration; the year 5138 is far enough."""
    if not (math.isfinite(number) and 0 <= number < 1e11):
        raise ConfigError("E-CONFIG-VALUE", "a time is not one")
    return number


def label(text: str) -> str:
    """A word or two for people: a version, a device, a code."""
    return clean(text, _LABEL_CHARACTERS)


def advertised(text: str) -> Address | None:
    """Where somebody says that he is reached; None: he does not say."""
    return reachable_place(text) if text else None


def bounded(decode: Callable[[bytes], T], limit: int) -> Callable[[bytes], T]:
    """A decoder that does not begin with a message that is too long."""

    def decoded(message: bytes) -> T:
        if len(message) > limit:
            raise PeerError("E-PEER-PROTOCOL", f"a message of {len(message)} bytes is too long: {limit} are allowed")
        return decode(message)

    return decoded


@answer
def read_object(data: bytes) -> dict[str, Any]:
    """A JSON object from the other end, its texts fit to be shown."""
    try:
        value = parse_json(data)
    except ValueError as error:
        raise PeerError("E-PEER-PROTOCOL", f"the answer holds no usable JSON: {clean(str(error), 200)}") from error
    if not isinstance(value, dict):
        raise PeerError("E-PEER-PROTOCOL", "the answer holds JSON that is not an object")
    shown: dict[str, Any] = clean_all(value)
    return shown
