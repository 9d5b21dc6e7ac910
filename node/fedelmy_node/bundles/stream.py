"""Whether a bundle may be used: well-formed, of the agreed shape and metadata, finite.

One check for a bundle that arrives, before a receipt is given, and for one that a trainer reads from the disk: what
passes the first passes the second. How far it is from the initial model, if a site limits that, only the trainer sees.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple

from fedelmy_node.bundles.check import check_manifest
from fedelmy_node.bundles.finite import Exponents, nonfinite
from fedelmy_node.bundles.header import ITEM_BYTES, LENGTH_BYTES, Header, longest_header, parse_header, text_bytes
from fedelmy_node.bundles.manifest import SAMPLES, SEEN_GROUP, TensorInfo
from fedelmy_node.bundles.metadata import check_metadata
from fedelmy_node.errors import BundleError, StoreError

__all__ = ["StreamCheck", "check_bundle", "ANY_SAMPLES", "TRAINED_SAMPLES", "MERGED_SAMPLES"]

_READ_BYTES: Final = 1 << 20
_SEEN: Final = f"{SEEN_GROUP}/{SAMPLES}"
ANY_SAMPLES: Final = range(2**53 + 1)
TRAINED_SAMPLES: Final = range(1, 2**53 + 1)
MERGED_SAMPLES: Final = range(1)
"""A merge begins to count anew."""


def check_bundle(path: Path, manifest: Sequence[TensorInfo], metadata: str) -> None:
    """Raise unless the file is a bundle with exactly these tensors and metadata, and no NaN or infinity in them."""
    try:
        with FileIO(path) as file:
            check = StreamCheck(os.fstat(file.fileno()).st_size, manifest, metadata)
            buffer = memoryview(bytearray(_READ_BYTES))
            while count := file.readinto(buffer):
                check.feed(buffer[:count])
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StoreError("E-STORE-DAMAGED", f"a bundle cannot be read: {reason}", private=str(path)) from error
    check.finish()


class _Values(NamedTuple):
    """A tensor whose values are looked at, by where it lies in the file."""

    begin: int
    end: int
    name: str
    dtype: str


class StreamCheck:
    """Takes a bundle's bytes in order and raises at the first block that shows that the bundle may not be used.

    Memory: the header until it is parsed, which is no longer than one of these tensors can be, and then one buffer,
    whatever the size of bundle and tensors.
    """

    def __init__(
        self, file_bytes: int, manifest: Sequence[TensorInfo], metadata: str, samples: range = ANY_SAMPLES
    ) -> None:
        """`samples`: how many the model can say it was trained on since the last merge."""
        self._file_bytes = file_bytes
        self._expected = manifest
        self._metadata = metadata
        self._samples = samples
        self._longest = longest_header(manifest)
        self._position = 0
        self._head = bytearray()
        self._values: Iterator[_Values] | None = None
        """The tensors that are still to come; None until the header is parsed."""
        self._current: _Values | None = None
        self._split = b""
        """The beginning of a value whose end is in the next block."""
        self._exponents: Exponents | None = None

    def feed(self, data: bytes | memoryview) -> None:
        """The next bytes of the bundle, however many."""
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
        self._look_at(memoryview(data), begin)

    def finish(self) -> None:
        """The bundle has ended: only one that ended too early has not been judged yet."""
        if self._values is None:
            text_bytes(bytes(self._head[:LENGTH_BYTES]), self._position)  # raises: there is less than it says
        if self._position != self._file_bytes:
            raise BundleError("E-BUNDLE-FORMAT", "not a bundle: it ended before its last tensor did")

    def rest(self) -> None:
        """Give the buffer back until more comes."""
        self._exponents = None

    def _parse_head(self) -> Header | None:
        if len(self._head) < LENGTH_BYTES:
            return None
        end = LENGTH_BYTES + text_bytes(bytes(self._head[:LENGTH_BYTES]), self._file_bytes, self._longest)
        return parse_header(bytes(self._head[LENGTH_BYTES:end]), self._file_bytes) if len(self._head) >= end else None

    def _look_at(self, data: memoryview, begin: int) -> None:
        """Every value that ends in `data`, which lies at `begin`."""
        assert self._values is not None
        while (tensor := self._current) is not None and tensor.begin < self._position:
            # The header's last block may begin before the tensors do, but none ends before they begin.
            part = data[max(tensor.begin - begin, 0) : tensor.end - begin]
            self._look_at_part(part, tensor)
            if tensor.end > self._position:
                return
            self._current = next(self._values, None)

    def _look_at_part(self, part: memoryview, tensor: _Values) -> None:
        item = ITEM_BYTES[tensor.dtype]
        if self._split:
            missing = item - len(self._split)
            self._split, part = self._split + part[:missing].tobytes(), part[missing:]
            if len(self._split) < item:
                return
            self._look_at_values(self._split, tensor)
        whole = len(part) - len(part) % item
        self._split = part[whole:].tobytes()
        if whole:
            self._look_at_values(part[:whole], tensor)

    def _look_at_values(self, values: bytes | memoryview, tensor: _Values) -> None:
        if tensor.name == _SEEN:
            seen = int.from_bytes(values, "little", signed=True)
            if seen not in self._samples:
                raise BundleError("E-BUNDLE-FORMAT", f"a model cannot have been trained on {seen} samples")
            return
        exponents = self._exponents = self._exponents or Exponents()
        if not exponents.all_finite(values, tensor.dtype):
            raise nonfinite(tensor.name)


def _values(header: Header) -> list[_Values]:
    """The tensors whose values may be wrong, in the file's order: floats, and the count of samples."""
    offset = header.data_offset
    return sorted(
        _Values(offset + span.begin, offset + span.end, tensor.name, tensor.dtype)
        for span, tensor in zip(header.spans, header.manifest, strict=True)
        if (Exponents.know(tensor.dtype) or tensor.name == _SEEN) and span.begin < span.end
    )
