"""The same check as `check.check_bundle`, made while the bundle arrives: no second look at the file is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fedelmy_node.bundles.check import check_manifest
from fedelmy_node.bundles.finite import Exponents, nonfinite
from fedelmy_node.bundles.header import ITEM_BYTES, LENGTH_BYTES, Header, longest_header, parse_header, text_bytes
from fedelmy_node.bundles.manifest import TensorInfo

__all__ = ["StreamCheck"]


class _Floats(NamedTuple):
    """A tensor of floats, by where it lies in the file."""

    begin: int
    end: int
    name: str
    dtype: str


class StreamCheck:
    """Takes a bundle's bytes in order and raises at the first block that shows that the bundle may not be used.

    Memory: the header until it is parsed, which is no longer than one of these tensors can be, and then one buffer,
    whatever the size of bundle and tensors.
    """

    def __init__(self, file_bytes: int, manifest: Sequence[TensorInfo]) -> None:
        self._file_bytes = file_bytes
        self._expected = manifest
        self._longest = longest_header(manifest)
        self._position = 0
        self._head = bytearray()
        self._floats: Iterator[_Floats] | None = None
        """The tensors that are still to come; None until the header is parsed."""
        self._current: _Floats | None = None
        self._split = b""
        """The beginning of a value whose end is in the next block."""
        self._exponents: Exponents | None = None

    def feed(self, data: bytes | memoryview) -> None:
        """The next bytes of the bundle, however many."""
        begin, self._position = self._position, self._position + len(data)
        if self._floats is None:
            self._head += data
            if (header := self._parse_head()) is None:
                return
            check_manifest(header.manifest, self._expected)
            self._floats = iter(_floats(header))
            self._current = next(self._floats, None)
            self._head.clear()
        self._look_at(memoryview(data), begin)

    def finish(self) -> None:
        """The bundle has ended: only one that ended inside its header has not been judged yet."""
        if self._floats is None:
            text_bytes(bytes(self._head[:LENGTH_BYTES]), self._position)  # raises: there is less than it says

    def rest(self) -> None:
        """Give the buffer back until more comes."""
        self._exponents = None

    def _parse_head(self) -> Header | None:
        if len(self._head) < LENGTH_BYTES:
            return None
        end = LENGTH_BYTES + text_bytes(bytes(self._head[:LENGTH_BYTES]), self._file_bytes, self._longest)
        return parse_header(bytes(self._head[LENGTH_BYTES:end]), self._file_bytes) if len(self._head) >= end else None

    def _look_at(self, data: memoryview, begin: int) -> None:
        """Every float that ends in `data`, which lies at `begin`."""
        assert self._floats is not None
        while (tensor := self._current) is not None and tensor.begin < self._position:
            # The header's last block may begin before the tensors do, but none ends before they begin.
            part = data[max(tensor.begin - begin, 0) : tensor.end - begin]
            self._look_at_part(part, tensor)
            if tensor.end > self._position:
                return
            self._current = next(self._floats, None)

    def _look_at_part(self, part: memoryview, tensor: _Floats) -> None:
        exponents = self._exponents = self._exponents or Exponents()
        item = ITEM_BYTES[tensor.dtype]
        if self._split:
            missing = item - len(self._split)
            self._split, part = self._split + part[:missing].tobytes(), part[missing:]
            if len(self._split) < item:
                return
            if not exponents.all_finite(self._split, tensor.dtype):
                raise nonfinite(tensor.name)
        whole = len(part) - len(part) % item
        self._split = part[whole:].tobytes()
        if whole and not exponents.all_finite(part[:whole], tensor.dtype):
            raise nonfinite(tensor.name)


def _floats(header: Header) -> list[_Floats]:
    """The tensors that have exponents and values, in the file's order."""
    offset = header.data_offset
    return sorted(
        _Floats(offset + span.begin, offset + span.end, tensor.name, tensor.dtype)
        for span, tensor in zip(header.spans, header.manifest, strict=True)
        if Exponents.know(tensor.dtype) and span.begin < span.end
    )
