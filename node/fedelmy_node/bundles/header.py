"""The header of a safetensors file that somebody else wrote, parsed strictly and within bounds.

The daemon looks at what arrives before any library does: a header that passes here describes tensors that
exactly fill the file, each with a known type and a plausible shape.

    8 bytes   length of the JSON text, little endian
    n bytes   {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets": [begin, end]}, ...}
    the rest  the tensors' bytes; offsets count from here
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from fedelmy_node.bundles.manifest import TensorInfo
from fedelmy_node.config.strict_json import parse_json
from fedelmy_node.errors import BundleError, StoreError

__all__ = [
    "Header",
    "Span",
    "ITEM_BYTES",
    "LENGTH_BYTES",
    "longest_header",
    "read_header",
    "text_bytes",
    "parse_header",
]

ITEM_BYTES: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8,
    "F16": 2, "BF16": 2, "F32": 4, "F64": 8,
}  # fmt: skip
"""The types that a bundle may have: integers, and the floats whose finiteness `finite.py` can check."""
MAX_HEADER_BYTES: Final = 32 * 2**20
MAX_TENSORS: Final = 200_000
MAX_NAME_LENGTH: Final = 1024
MAX_RANK: Final = 8
MAX_METADATA: Final = 64
LENGTH_BYTES: Final = 8
_METADATA_BYTES: Final = 64 * 1024
"""Of free text and padding; the format's own writer needs less than 1 KiB."""
_ENTRY_BYTES: Final = 512
"""Of a tensor beside its name: type, eight sizes and two offsets of up to 19 digits, and spaces."""


class Span(NamedTuple):
    """Where a tensor's bytes are, counted from `Header.data_offset`."""

    begin: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What a bundle says about itself, checked."""

    manifest: tuple[TensorInfo, ...]
    """The tensors, sorted by name."""
    spans: tuple[Span, ...]
    """Where each tensor of `manifest` lies, in the same order."""
    metadata: dict[str, str]
    """Free text of the writer."""
    data_offset: int
    """Where in the file the tensors' bytes begin."""
    file_bytes: int
    """The size of the file, which the tensors exactly fill."""


def read_header(path: Path) -> Header:
    """The header of the bundle at `path`; anything wrong with it is E-BUNDLE-FORMAT."""
    try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            length = text_bytes(file.read(LENGTH_BYTES), file_bytes)
            text = _read(file.read(length), length)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StoreError("E-STORE-DAMAGED", f"a bundle cannot be read: {reason}", private=str(path)) from error
    return parse_header(text, file_bytes)


def longest_header(manifest: Iterable[TensorInfo]) -> int:
    """How many bytes length and JSON text of a bundle of these tensors may have, however its writer spells them.

    Tensors that are agreed on need a known header; more would only be memory that a sender makes the receiver hold.
    """
    entries = sum(len(json.dumps(tensor.name)) + _ENTRY_BYTES for tensor in manifest)
    return LENGTH_BYTES + min(MAX_HEADER_BYTES, _METADATA_BYTES + entries)


def text_bytes(first: bytes, file_bytes: int, limit: int | None = None) -> int:
    """How long the JSON text is, from the file's first bytes; `limit` is that of `longest_header`, if it is known."""
    length = int.from_bytes(_read(first, LENGTH_BYTES), "little")
    longest = MAX_HEADER_BYTES if limit is None else limit - LENGTH_BYTES
    if length > min(longest, file_bytes - LENGTH_BYTES):
        raise _bad(f"a header of {length} bytes is too long for this file")
    return length


def parse_header(text: bytes, file_bytes: int) -> Header:
    """The header whose JSON text is `text`, of a file of `file_bytes`."""
    table = _parse_json(text)
    metadata = _metadata(table.pop("__metadata__", {}))
    if len(table) > MAX_TENSORS:
        raise _bad(f"{len(table)} tensors are more than {MAX_TENSORS}")
    tensors = sorted((_tensor(name, entry) for name, entry in table.items()), key=lambda pair: pair[0].name)
    data_offset = LENGTH_BYTES + len(text)
    _check_filled((span for _, span in tensors), file_bytes - data_offset)
    return Header(
        manifest=tuple(info for info, _ in tensors),
        spans=tuple(span for _, span in tensors),
        metadata=metadata,
        data_offset=data_offset,
        file_bytes=file_bytes,
    )


def _read(data: bytes, wanted: int) -> bytes:
    if len(data) != wanted:
        raise _bad("the file ends inside its header")
    return data


def _parse_json(text: bytes) -> dict[str, Any]:
    if text[:1] != b"{":
        raise _bad("the header does not begin with '{'")
    try:
        table = parse_json(text, max_values=16 * MAX_TENSORS)
    except ValueError as error:
        raise _bad(f"the header is not valid JSON: {_short(error)}") from error
    assert isinstance(table, dict), "a JSON text that begins with a brace is an object"
    return table


def _metadata(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > MAX_METADATA:
        raise _bad("its metadata are not a small table")
    if not all(isinstance(text, str) and _is_unicode(text) for pair in value.items() for text in pair):
        raise _bad("its metadata are not text")
    return value


def _tensor(name: str, entry: object) -> tuple[TensorInfo, Span]:
    if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        raise _bad(f"{_short(name)!r} is not a tensor's name")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _bad(f"{_short(name)}: an entry has dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise _bad(f"{_short(name)}: unknown type {_short(dtype)!r}")
    if not _is_counts(shape) or len(shape) > MAX_RANK:
        raise _bad(f"{_short(name)}: {_short(shape)} is not a shape")
    if not _is_counts(offsets) or len(offsets) != 2 or offsets[1] < offsets[0]:
        raise _bad(f"{_short(name)}: {_short(offsets)} are not offsets")
    if offsets[1] - offsets[0] != math.prod(shape) * ITEM_BYTES[dtype]:
        raise _bad(f"{_short(name)}: shape and offsets disagree about its size")
    return TensorInfo(name=name, dtype=dtype, shape=tuple(shape)), Span(*offsets)


def _is_counts(value: object) -> bool:
    """A list of integers that other software can count with, too; `True` is not an integer."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _check_filled(spans: Iterable[Span], data_bytes: int) -> None:
    """Tensors lie end to end: no hole that hides something, no overlap, nothing after the last one."""
    position = 0
    for span in sorted(spans):
        if span.begin != position:
            raise _bad(f"tensors leave a hole or overlap at byte {min(span.begin, position)}")
        position = span.end
    if position != data_bytes:
        raise _bad(f"the tensors need {position} bytes, the file has {data_bytes}")


def _is_unicode(text: str) -> bool:
    """False for lone surrogates, which JSON can spell but UTF-8 cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _short(value: object) -> str:
    """A sender's own words, cut to what fits in a message."""
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _bad(reason: str) -> BundleError:
    return BundleError("E-BUNDLE-FORMAT", f"not a bundle: {reason}")
