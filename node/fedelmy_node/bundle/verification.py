"""Verification of bundles: valid format, the expected tensors and metadata, finite values.

The same check applies to a received bundle, before its receipt, and to one that a trainer reads
from disk. Only the trainer can check the distance from the initial model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple

from fedelmy_node.bundle.format import (
    ITEM_BYTES,
    LENGTH_BYTES,
    Header,
    check_metadata,
    longest_header,
    parse_header,
    text_bytes,
    unreadable_bundle,
)
from fedelmy_node.domain.artifact import SAMPLES, SEEN_GROUP, TensorInfo
from fedelmy_node.domain.errors import BundleError

_NAMED: Final = 3
"""Differing tensors listed in a message."""


def check_manifest(found: Sequence[TensorInfo], expected: Sequence[TensorInfo]) -> None:
    """Raise E-BUNDLE-MANIFEST, listing the first differences, unless both have the same tensors."""
    here = {tensor.name: tensor for tensor in found}
    wanted = {tensor.name: tensor for tensor in expected}
    if len(here) != len(found):
        raise BundleError("E-BUNDLE-MANIFEST", "the weights name a tensor twice")
    differing = sorted(n for n in here.keys() | wanted.keys() if here.get(n) != wanted.get(n))
    if not differing:
        return
    named = "; ".join(
        f"{name}: {_describe(here.get(name))} instead of {_describe(wanted.get(name))}"
        for name in differing[:_NAMED]
    )
    more = f"; and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
    raise BundleError("E-BUNDLE-MANIFEST", f"the weights belong to another model: {named}{more}")


def _describe(tensor: TensorInfo | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}"


BLOCK_BYTES: Final = 2**20
_EXPONENT: Final[Mapping[str, tuple[str, int]]] = {
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
    "F32": ("<u4", 0x7F80_0000),
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
}
"""A float is NaN or infinite if and only if all bits of its exponent are set."""


class Exponents:
    """Finds NaN and infinity by their exponents, with one buffer for all blocks."""

    def __init__(self) -> None:
        import numpy  # keeps numpy out of the idle daemon

        self._np = numpy
        self._masked = numpy.empty(BLOCK_BYTES, dtype=numpy.uint8)

    @staticmethod
    def apply_to(dtype: str) -> bool:
        """Return whether a type has exponents; other types are always finite."""
        return dtype in _EXPONENT

    def all_finite(self, part: memoryview | bytes, dtype: str) -> bool:
        """Return whether whole values of a tensor contain no NaN and no infinity."""
        kind, mask = _EXPONENT[dtype]
        bits = self._np.frombuffer(part, dtype=kind)
        buffer = self._masked.view(kind)
        for begin in range(0, bits.size, buffer.size):
            some = bits[begin : begin + buffer.size]
            masked = buffer[: some.size]
            self._np.bitwise_and(some, some.dtype.type(mask), out=masked)
            if masked.max() == mask:  # no masked value exceeds the mask
                return False
        return True


_READ_BYTES: Final = 1 << 20
_SEEN: Final = f"{SEEN_GROUP}/{SAMPLES}"
ANY_SAMPLES: Final = range(2**53 + 1)
TRAINED_SAMPLES: Final = range(1, 2**53 + 1)
MERGED_SAMPLES: Final = range(1)
"""A merge resets the count of samples."""


def check_bundle(path: Path, manifest: Sequence[TensorInfo], metadata: str) -> None:
    """Raise unless the file is a bundle of exactly these tensors and metadata, all finite."""
    try:
        with FileIO(path) as file:
            check = StreamCheck(os.fstat(file.fileno()).st_size, manifest, metadata)
            buffer = memoryview(bytearray(_READ_BYTES))
            while count := file.readinto(buffer):
                check.feed(buffer[:count])
    except OSError as error:
        raise unreadable_bundle(path, error) from error
    check.finish()


class _Values(NamedTuple):
    """Position of a tensor whose values are checked."""

    begin: int
    end: int
    name: str
    dtype: str


class StreamCheck:
    """Checks a bundle while its bytes arrive, and raises at the first invalid block.

    Memory: the header until it is parsed, at most `longest_header`; then one buffer.
    """

    def __init__(
        self,
        file_bytes: int,
        manifest: Sequence[TensorInfo],
        metadata: str,
        samples: range = ANY_SAMPLES,
    ) -> None:
        """`samples`: valid counts of training samples since the last merge."""
        self._file_bytes = file_bytes
        self._expected = manifest
        self._metadata = metadata
        self._samples = samples
        self._longest = longest_header(manifest)
        self._position = 0
        self._head = bytearray()
        self._values: Iterator[_Values] | None = None
        """The remaining tensors; None until the header is parsed."""
        self._current: _Values | None = None
        self._split = b""
        """The beginning of a value that ends in the next block."""
        self._exponents: Exponents | None = None

    def feed(self, data: bytes | memoryview) -> None:
        """Check the next bytes, of any length."""
        begin, self._position = self._position, self._position + len(data)
        if self._values is None:
            self._head += data
            if (header := self._parse_head()) is None:
                return
            check_manifest(header.manifest, self._expected)
            check_metadata(header.metadata, self._metadata, header.manifest)
            self._values = iter(_values(header))
            self._current = next(self._values, None)
            self._head.clear()
        self._check_block(memoryview(data), begin)

    def finish(self) -> None:
        """Refuse a bundle that ended too early."""
        if self._values is None:  # raises, because the header is incomplete
            text_bytes(bytes(self._head[:LENGTH_BYTES]), self._position)
        if self._position != self._file_bytes:
            raise BundleError("E-BUNDLE-FORMAT", "invalid bundle: it ends before its last tensor")

    def rest(self) -> None:
        """Release the buffer until more bytes arrive."""
        self._exponents = None

    def _parse_head(self) -> Header | None:
        if len(self._head) < LENGTH_BYTES:
            return None
        length = bytes(self._head[:LENGTH_BYTES])
        end = LENGTH_BYTES + text_bytes(length, self._file_bytes, self._longest)
        if len(self._head) < end:
            return None
        return parse_header(bytes(self._head[LENGTH_BYTES:end]), self._file_bytes)

    def _check_block(self, data: memoryview, begin: int) -> None:
        """Check every value that ends in `data`, which starts at `begin` in the file."""
        assert self._values is not None
        while (tensor := self._current) is not None and tensor.begin < self._position:
            # The block with the end of the header begins before the first tensor.
            part = data[max(tensor.begin - begin, 0) : tensor.end - begin]
            self._check_part(part, tensor)
            if tensor.end > self._position:
                return
            self._current = next(self._values, None)

    def _check_part(self, part: memoryview, tensor: _Values) -> None:
        item = ITEM_BYTES[tensor.dtype]
        if self._split:
            missing = item - len(self._split)
            self._split, part = self._split + part[:missing].tobytes(), part[missing:]
            if len(self._split) < item:
                return
            self._check_values(self._split, tensor)
        whole = len(part) - len(part) % item
        self._split = part[whole:].tobytes()
        if whole:
            self._check_values(part[:whole], tensor)

    def _check_values(self, values: bytes | memoryview, tensor: _Values) -> None:
        if tensor.name == _SEEN:
            seen = int.from_bytes(values, "little", signed=True)
            if seen not in self._samples:
                raise BundleError("E-BUNDLE-FORMAT", f"invalid count of training samples: {seen}")
            return
        exponents = self._exponents = self._exponents or Exponents()
        if not exponents.all_finite(values, tensor.dtype):
            message = f"tensor {tensor.name!r} contains NaN or infinity"
            raise BundleError("E-BUNDLE-NONFINITE", message)


def _values(header: Header) -> list[_Values]:
    """Return the tensors to check, in file order: floats and the count of samples."""
    offset = header.data_offset
    return sorted(
        _Values(offset + span.begin, offset + span.end, tensor.name, tensor.dtype)
        for span, tensor in zip(header.spans, header.manifest, strict=True)
        if (Exponents.apply_to(tensor.dtype) or tensor.name == _SEEN) and span.begin < span.end
    )
