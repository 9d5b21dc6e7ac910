"""The safetensors files that carry weights: strict reading of header and metadata without torch.

Received files are checked here before any library reads them: an accepted header describes tensors
that exactly fill the file, each with a known type and a plausible shape.

    8 bytes    length of the JSON text, little endian
    n bytes    {"__metadata__": {text: text}, NAME: {"dtype", "shape", "data_offsets": [...]}, ...}
    the rest   the tensors' bytes; offsets count from here
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from fedelmy_node.config.decode import canonical_json, parse_json
from fedelmy_node.domain.artifact import TensorInfo
from fedelmy_node.domain.errors import BundleError, StoreError
from fedelmy_node.domain.federation import Frozen

ITEM_BYTES: Final = (
    dict.fromkeys(("BOOL", "U8", "I8"), 1)
    | dict.fromkeys(("U16", "I16", "F16", "BF16"), 2)
    | dict.fromkeys(("U32", "I32", "F32"), 4)
    | dict.fromkeys(("U64", "I64", "F64"), 8)
)
"""Allowed types: integers, and floats that can be checked for NaN and infinity."""
MAX_HEADER_BYTES: Final = 32 * 2**20
MAX_TENSORS: Final = 200_000
MAX_NAME_LENGTH: Final = 1024
MAX_RANK: Final = 8
MAX_METADATA: Final = 64
LENGTH_BYTES: Final = 8
_METADATA_BYTES: Final = 64 * 1024
"""For metadata and padding; safetensors needs less than 1 KiB."""
_ENTRY_BYTES: Final = 512
"""Per tensor, without its name: type, 8 sizes and 2 offsets of up to 19 digits, spaces."""


class Span(NamedTuple):
    """Position of a tensor's bytes, relative to `Header.data_offset`."""

    begin: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """A validated header."""

    manifest: tuple[TensorInfo, ...]
    """The tensors, sorted by name."""
    spans: tuple[Span, ...]
    """Position of each tensor, in the order of `manifest`."""
    metadata: dict[str, str]
    data_offset: int
    """Position of the first tensor in the file."""
    file_bytes: int


def read_header(path: Path) -> Header:
    """Read the header of a bundle; raise E-BUNDLE-FORMAT if it is invalid."""
    try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            length = text_bytes(file.read(LENGTH_BYTES), file_bytes)
            text = _read(file.read(length), length)
    except OSError as error:
        raise unreadable_bundle(path, error) from error
    return parse_header(text, file_bytes)


def unreadable_bundle(path: Path, error: OSError) -> StoreError:
    reason = error.strerror or type(error).__name__
    return StoreError("E-STORE-DAMAGED", f"cannot read a bundle: {reason}", private=str(path))


def longest_header(manifest: Iterable[TensorInfo]) -> int:
    """Return the maximum size of length and JSON text for these tensors.

    It limits the memory that a sender can make the receiver allocate.
    """
    entries = sum(len(json.dumps(tensor.name)) + _ENTRY_BYTES for tensor in manifest)
    return LENGTH_BYTES + min(MAX_HEADER_BYTES, _METADATA_BYTES + entries)


def text_bytes(first: bytes, file_bytes: int, limit: int | None = None) -> int:
    """Return the length of the JSON text; `limit` is the result of `longest_header`, if known."""
    length = int.from_bytes(_read(first, LENGTH_BYTES), "little")
    longest = MAX_HEADER_BYTES if limit is None else limit - LENGTH_BYTES
    if length > min(longest, file_bytes - LENGTH_BYTES):
        raise _bad(f"a header of {length} bytes is too long for this file")
    return length


def parse_header(text: bytes, file_bytes: int) -> Header:
    """Parse the JSON text of a header of a file with `file_bytes` bytes."""
    table = _parse_json(text)
    metadata = _metadata(table.pop("__metadata__", {}))
    if len(table) > MAX_TENSORS:
        raise _bad(f"it has {len(table)} tensors; the limit is {MAX_TENSORS}")
    tensors = [_tensor(name, table[name]) for name in sorted(table)]
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
    assert isinstance(table, dict), "JSON that begins with a brace is an object"
    return table


def _metadata(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > MAX_METADATA:
        raise _bad(f"its metadata is not a table of at most {MAX_METADATA} entries")
    if not all(isinstance(t, str) and _is_unicode(t) for pair in value.items() for t in pair):
        raise _bad("its metadata is not text")
    return value


def _tensor(name: str, entry: object) -> tuple[TensorInfo, Span]:
    shown = _short(name)
    if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        raise _bad(f"invalid tensor name {shown!r}")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _bad(f"{shown}: an entry must have dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise _bad(f"{shown}: unknown type {_short(dtype)!r}")
    if not _is_counts(shape) or len(shape) > MAX_RANK:
        raise _bad(f"{shown}: invalid shape {_short(shape)}")
    if not _is_counts(offsets) or len(offsets) != 2 or offsets[1] < offsets[0]:
        raise _bad(f"{shown}: invalid offsets {_short(offsets)}")
    if offsets[1] - offsets[0] != math.prod(shape) * ITEM_BYTES[dtype]:
        raise _bad(f"{shown}: shape and offsets do not agree")
    return TensorInfo(name=name, dtype=dtype, shape=tuple(shape)), Span(*offsets)


def _is_counts(value: object) -> bool:
    """Return whether a value is a list of 63-bit integers; `True` is not an integer."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _check_filled(spans: Iterable[Span], data_bytes: int) -> None:
    """Require tensors end to end: no gap that could hide data, no overlap, no trailing bytes."""
    position = 0
    for span in sorted(spans):
        if span.begin != position:
            raise _bad(f"tensors leave a gap or overlap at byte {min(span.begin, position)}")
        position = span.end
    if position != data_bytes:
        raise _bad(f"the tensors need {position} bytes; the file has {data_bytes}")


def _is_unicode(text: str) -> bool:
    """Return False for lone surrogates, which UTF-8 cannot encode."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _bad(reason: str) -> BundleError:
    return BundleError("E-BUNDLE-FORMAT", f"invalid bundle: {reason}")


KEY: Final = "fedelmy"
"""The only metadata key, because safetensors writes several in random order."""
_FORMAT: Final = 1


def metadata_text(
    groups: Iterable[str], aliases: Mapping[str, str], frozen: Frozen | None = None
) -> str:
    """Return the metadata of a bundle; `aliases` maps further names to its tensors.

    `frozen` makes the digests of equal heads on different backbones differ.
    """
    table = {"format": _FORMAT, "groups": sorted(groups), "aliases": aliases}
    if frozen is not None:
        table["frozen"] = frozen
    return canonical_json(table).decode()


def parse_metadata(metadata: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return groups and aliases; raise E-BUNDLE-FORMAT for metadata of other software."""
    try:
        table: dict[str, Any] = parse_json(metadata[KEY].encode())
        groups, aliases = table["groups"], table["aliases"]
        names = [*groups, *aliases, *aliases.values()]
        usable = table["format"] == _FORMAT and all(isinstance(name, str) for name in names)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise _bad("unknown metadata") from error
    if not usable:
        raise _bad(f"unknown format {table['format']!r}")
    return groups, aliases


def check_metadata(found: Mapping[str, str], expected: str, manifest: Sequence[TensorInfo]) -> None:
    """Refuse metadata that differs from the expected text.

    Older runs did not record it (`expected` is empty): then it must be consistent with the tensors.
    """
    groups, aliases = parse_metadata(found)
    if expected:
        if found != {KEY: expected}:
            message = "the metadata of the weights does not match this run"
            raise BundleError("E-BUNDLE-FORMAT", message)
        return
    names = {tensor.name for tensor in manifest}
    grouped = {_group(name) for name in names} == set(groups)
    aliased = names.issuperset(aliases.values()) and {*map(_group, aliases)} <= {*groups}
    if not grouped or not aliased:
        raise BundleError(
            "E-BUNDLE-FORMAT", "the metadata of the weights does not match its tensors"
        )


def _group(name: str) -> str:
    return name.partition("/")[0]


def tensor_bytes(manifest: Iterable[TensorInfo]) -> int:
    """Return the size of all values, without the header."""
    return sum(math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype] for tensor in manifest)


def model_bytes(manifest: Iterable[TensorInfo]) -> int:
    """Return the size of all values in a trainer, where 16-bit floats become float32."""
    sizes = ITEM_BYTES | {"F16": 4, "BF16": 4}
    return sum(math.prod(tensor.shape) * sizes[tensor.dtype] for tensor in manifest)
