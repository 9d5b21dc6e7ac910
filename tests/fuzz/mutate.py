"""Inputs that are nearly right: valid ones, changed by somebody who knows how they are built.

Bytes, JSON, protobuf and PEM each have their own ways to lie; `mutate` tries those that an input's
form admits.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import Any, Final

__all__ = ["mutate", "join_frames", "split_frames", "INTERESTING_NUMBERS", "INTERESTING_TEXTS"]

LONGEST_BYTES: Final = 1 << 18
"""Inputs that fill a message are in the corpus; here, many small ones find more than few large
ones.
"""
INTERESTING_NUMBERS: Final[tuple[Any, ...]] = (
    0,
    -1,
    1,
    2,
    7,
    255,
    256,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    -(2**63),
    2**64 - 1,
    2**64,
    10**40,
    10**400,
    0.5,
    -0.0,
    1e-320,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    True,
    False,
)
INTERESTING_TEXTS: Final = (
    "",
    " ",
    "a",
    "north",
    "train.1@north",
    "run-1",
    "float32",
    "\0",
    "\n",
    "\x1b[2J\x1b]0;x\x07",
    "\u202egnp.exe",
    "../../etc/passwd",
    "/dev/null",
    "a/b",
    "C:\\x",
    "%s%n",
    "{0}",
    "$(id)",
    "'; DROP TABLE runs; --",
    "\ud800",
    "\udfff",
    "\uffff",
    "\U0001f600",
    "e\u0301" * 20,
    "é",
    "A" * 65,
    "a" * 5000,
    "9" * 4400,
    "E-INTERNAL",
    "E-STORE-DAMAGED",
    "train.1@north>train.2@south",
    ">",
    "@",
    ".",
    "[::1]:99999",
    "x:0",
    "\r\n[2027-01-01] INFO forged",
)


def mutate(data: bytes, chance: random.Random, form: str) -> bytes:
    """One changed input; `form` says how it is built."""
    ways: dict[str, Callable[[bytes, random.Random], bytes]] = {
        "bytes": _bytes,
        "json": _json,
        "protobuf": _protobuf,
        "frames": _frames,
        "pem": _pem,
        "header": _header,
        "der": _der,
        "lines": _lines,
    }
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
        way = ways[form] if chance.random() < 0.8 else _bytes
        data = way(data, chance)[:LONGEST_BYTES]
    return data


def _bytes(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    at = chance.randrange(len(out) + 1)
    end = min(len(out), at + chance.choice((1, 1, 2, 4, 8, 64)))
    match chance.randrange(8):
        case 0:
            out[at:end] = b""
        case 1:
            out[at:at] = chance.randbytes(chance.choice((1, 2, 4, 8, 100)))
        case 2:
            out[at:end] = chance.randbytes(end - at)
        case 3 if at < len(out):
            out[at] ^= 1 << chance.randrange(8)
        case 4:
            out[at:at] = out[at:end] * chance.choice((2, 10, 100))
        case 5:
            del out[at:]
        case 6:
            number = chance.choice((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1))
            out[at : at + 8] = number.to_bytes(8, chance.choice(("little", "big")))
        case _:
            out[at:end] = (
                chance.choice((b"\x00", b"\xff", b"\x80", b'"', b"{", b"[", b"\\", b"\xed\xa0\x80"))
                * 3
            )
    return bytes(out)


# --- JSON
# ---------------------------------------------------------------------------------------------------


def _json(data: bytes, chance: random.Random) -> bytes:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return _bytes(data, chance)
    changed = _change(value, chance)
    try:
        text = json.dumps(changed, ensure_ascii=chance.random() < 0.5)
    except (ValueError, RecursionError):  # integers that Python does not print
        return _bytes(data, chance)
    if chance.random() < 0.1 and text.startswith("{") and len(text) > 2:
        text = text[:-1] + "," + text[1:]  # every key twice
    return text.encode("utf-8", "surrogatepass")


def _any_value(chance: random.Random) -> Any:
    match chance.randrange(7):
        case 0 | 1:
            return chance.choice(INTERESTING_NUMBERS)
        case 2 | 3:
            return chance.choice(INTERESTING_TEXTS)
        case 4:
            return None
        case 5:
            return chance.choice(([], {}, [[]], {"a": 1}, [1] * 300, [None] * 3))
        case _:
            deep: Any = 0
            for _ in range(chance.choice((5, 40, 200))):
                deep = [deep] if chance.random() < 0.5 else {"a": deep}
            return deep


def _change(value: Any, chance: random.Random) -> Any:  # noqa: PLR0911 - one return per change
    """The value with one node changed, wherever it is."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        match chance.randrange(10):
            case 0:
                return {name: item for name, item in value.items() if name != key}
            case 1:
                return {**value, chance.choice(INTERESTING_TEXTS): _any_value(chance)}
            case 2:
                return {
                    (chance.choice(INTERESTING_TEXTS) if name == key else name): i
                    for name, i in value.items()
                }
            case 3:
                return {**value, key: value[chance.choice(list(value))]}
            case _:
                return {**value, key: _change(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.85:
        at = chance.randrange(len(value))
        match chance.randrange(8):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value + [value[at]] * chance.choice((1, 2, 50))
            case 2:
                return value[::-1]
            case _:
                return [*value[:at], _change(value[at], chance), *value[at + 1 :]]
    if isinstance(value, str) and chance.random() < 0.4:
        at = chance.randrange(len(value) + 1)
        return (
            value[:at] + chance.choice(INTERESTING_TEXTS)[:30] + value[at + chance.randrange(2) :]
        )
    return _any_value(chance)


# --- protobuf
# -----------------------------------------------------------------------------------------------

Field = tuple[int, int, Any]
"""Number, wire type, and a number or bytes."""


def _protobuf(data: bytes, chance: random.Random) -> bytes:
    fields = _fields(data)
    if fields is None or (fields == [] and chance.random() < 0.5):
        return _bytes(data, chance)
    at = chance.randrange(len(fields)) if fields else 0
    match chance.randrange(10) if fields else 9:
        case 0:
            del fields[at]
        case 1:
            fields[at:at] = [fields[at]] * chance.choice((1, 2, 100))
        case 2:
            chance.shuffle(fields)
        case 3:
            number, kind, value = fields[at]
            fields[at] = (chance.choice((number + 1, 1, 7, 2**29 - 1)), kind, value)
        case 9:
            fields.append(
                (
                    chance.choice((1, 2, 5, 15, 16, 2047)),
                    2,
                    chance.randbytes(chance.choice((0, 3, 300))),
                )
            )
        case _:
            fields[at] = _change_field(fields[at], chance)
    return b"".join(_encode(field, chance) for field in fields)


def _change_field(field: Field, chance: random.Random) -> Field:
    number, kind, value = field
    if kind != 2:
        wild = chance.choice(
            (0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, chance.getrandbits(64))
        )
        doubles = (
            b"\x00" * 6 + b"\xf8\x7f",
            b"\x00" * 6 + b"\xf0\x7f",
            b"\x00" * 6 + b"\xf0\xff",
            b"\xff" * 7 + b"\x7f",
        )
        return number, kind, (chance.choice(doubles) if kind == 1 else wild)
    inner = _fields(value)
    if value[:1] in (b"{", b"[") and chance.random() < 0.8:
        return number, kind, _json(value, chance)
    if value[:5] == b"-----":
        return number, kind, _pem(value, chance)
    if inner and chance.random() < 0.7:
        return number, kind, _protobuf(value, chance)
    text = chance.choice(INTERESTING_TEXTS).encode("utf-8", "surrogatepass")
    return number, kind, chance.choice((text, b"", value + text, _bytes(value, chance), value * 2))


def _encode(field: Field, chance: random.Random) -> bytes:
    number, kind, value = field
    tag = _varint(number << 3 | kind)
    if kind == 0:
        return tag + _varint(value)
    if kind == 2:
        lie = (
            chance.choice((len(value) + 1, 0, 2**31, 2**63))
            if chance.random() < 0.02
            else len(value)
        )
        return tag + _varint(lie) + value
    return tag + bytes(value if isinstance(value, bytes) else value.to_bytes(8, "little"))


def _fields(data: bytes) -> list[Field] | None:
    """The fields of a message; None if it is none."""
    found: list[Field] = []
    at = 0
    while at < len(data):
        tag, at = _read(data, at)
        number, kind = tag >> 3, tag & 7
        if at < 0 or number == 0 or kind not in (0, 1, 2):
            return None
        if kind == 0:
            value, at = _read(data, at)
            found.append((number, kind, value))
        else:
            length, at = _read(data, at) if kind == 2 else (8, at)
            if at < 0 or at + length > len(data):
                return None
            found.append((number, kind, data[at : at + length]))
            at += length
        if at < 0:
            return None
    return found


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _read(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for count, byte in enumerate(data[at : at + 10]):
        number |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return number, at + count + 1
    return 0, -1


# --- others
# -------------------------------------------------------------------------------------------------


def _frames(data: bytes, chance: random.Random) -> bytes:
    """Messages with four bytes of length before each: a stream."""
    frames = split_frames(data)
    if not frames:
        return _bytes(data, chance)
    at = chance.randrange(len(frames))
    match chance.randrange(6):
        case 0:
            del frames[at]
        case 1:
            frames[at:at] = [frames[at]] * chance.choice((1, 2, 20))
        case 2:
            chance.shuffle(frames)
        case _:
            way = _pem if frames[at][:5] == b"-----" else _der if _parts(frames[at]) else _protobuf
            frames[at] = way(frames[at], chance)
    return join_frames(frames)


def join_frames(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def split_frames(data: bytes) -> list[bytes]:
    frames, at = [], 0
    while at + 4 <= len(data) and len(frames) < 200:
        length = int.from_bytes(data[at : at + 4], "big")
        frames.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return frames


def _header(data: bytes, chance: random.Random) -> bytes:
    """The beginning of a safetensors file: a length, JSON, and values."""
    length = int.from_bytes(data[:8], "little")
    text, rest = data[8 : 8 + length], data[8 + length :]
    if chance.random() < 0.9:
        text = _json(text, chance)
    told = (
        len(text)
        if chance.random() < 0.9
        else chance.choice((0, len(text) + 1, 2**31, 2**63, 2**64 - 1))
    )
    if chance.random() < 0.2:
        rest = _bytes(rest, chance)
    return told.to_bytes(8, "little") + text + rest


def _pem(data: bytes, chance: random.Random) -> bytes:
    """The DER inside a PEM, changed where its lengths and tags are."""
    lines = data.split(b"\n")
    try:
        begin = next(i for i, line in enumerate(lines) if line.startswith(b"-----BEGIN"))
        end = next(i for i, line in enumerate(lines) if line.startswith(b"-----END"))
        der = base64.b64decode(b"".join(lines[begin + 1 : end]))
    except (StopIteration, ValueError):
        return _bytes(data, chance)
    match chance.randrange(8):
        case 0:
            return data * chance.choice((2, 30))
        case 1:
            return data.replace(
                b"CERTIFICATE", chance.choice((b"X509 CRL", b"PRIVATE KEY", b"CERTIFICATE REQUEST"))
            )
        case way:
            changed = _der(der, chance) if way < 5 else _bytes(der, chance)
            return b"\n".join(
                [*lines[: begin + 1], base64.encodebytes(changed).strip(), *lines[end:]]
            )


def _lines(data: bytes, chance: random.Random) -> bytes:
    """A file of lines, each of them JSON."""
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    match chance.randrange(8):
        case 0:
            del lines[at]
        case 1:
            lines[at:at] = [lines[at]] * chance.choice((1, 2, 50))
        case 2:
            chance.shuffle(lines)
        case 3:
            return data[: chance.randrange(len(data) + 1)]
        case _:
            lines[at] = _json(lines[at], chance)
    return b"\n".join(lines)


# --- DER
# ----------------------------------------------------------------------------------------------------

Part = tuple[int, bytes]
"""Tag and content."""


def _der(data: bytes, chance: random.Random) -> bytes:
    """Changed somewhere inside, with lengths that fit again: what a parser sees behind its first
    check.
    """
    parts = _parts(data)
    if not parts:
        return _bytes(data, chance)
    at = chance.randrange(len(parts))
    tag, content = parts[at]
    inside = content[1:] if tag == 0x03 and content[:1] == b"\0" else content
    if _parts(inside) and chance.random() < 0.85:
        parts[at] = tag, content[: len(content) - len(inside)] + _der(inside, chance)
        return b"".join(_put(part) for part in parts)
    match chance.randrange(10):
        case 0:
            del parts[at]
        case 1:
            parts[at:at] = [parts[at]] * chance.choice((1, 2, 40))
        case 2:
            chance.shuffle(parts)
        case 3 | 4:
            parts[at] = (
                chance.choice((1, 2, 3, 4, 5, 6, 9, 10, 12, 19, 23, 24, 48, 49, 0x80, 0xA0, 0xA3)),
                content,
            )
        case 5 | 6:
            parts[at] = tag, chance.choice(_CONTENTS)
        case _:
            parts[at] = tag, _bytes(content, chance)
    return b"".join(_put(part) for part in parts)


_CONTENTS: Final = (
    b"",
    b"\0",
    b"\x01",
    b"\x80",
    b"\xff" * 20,
    b"\x7f" + b"\xff" * 19,
    b"\x01" + bytes(200),
    b"a",
    b"\xff\xfe",
    b"*",
    b"991332000000Z",
    b"00000101000000Z",
    b"99991231235959Z",
    b"500101000000Z",
    b"20270101000000.5Z",
    b"\x55\x04\x03",
    b"\x55\x1d\x11",
    b"\x55\x1d\x14",
    b"\x2a\x86\x48\xce\x3d\x04\x03\x04",
    b"\x88" * 100,
    b"\x1b[2J",
    b"north.site.fedelmy",
    b"operator.operator.fedelmy",
    b"west.hospital.example",
    b"\xc3\xa9",
    b"a" * 5000,
    b"0\0",
    b"\x05\0",
)


def _parts(data: bytes) -> list[Part]:
    """What is one after the other here; nothing if it is not DER."""
    found: list[Part] = []
    at = 0
    while at < len(data):
        if at + 2 > len(data) or data[at] & 0x1F == 0x1F:
            return []
        tag, length, at = data[at], data[at + 1], at + 2
        if length >= 0x80:
            size = length & 0x7F
            if not 1 <= size <= 4:
                return []
            length, at = int.from_bytes(data[at : at + size], "big"), at + size
        if at + length > len(data):
            return []
        found.append((tag, data[at : at + length]))
        at += length
    return found


def _put(part: Part) -> bytes:
    tag, content = part
    if len(content) < 0x80:
        return bytes([tag, len(content)]) + content
    size = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(size)]) + size + content
