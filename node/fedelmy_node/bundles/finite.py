"""NaN and infinity in a bundle, found from the exponents' bits, block by block, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Final

from fedelmy_node.bundles.header import Header
from fedelmy_node.errors import BundleError, StoreError

__all__ = ["find_nonfinite"]

BLOCK_BYTES: Final = 2**20
_EXPONENT: Final[Mapping[str, tuple[str, int]]] = {
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
    "F32": ("<u4", 0x7F80_0000),
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
}
"""A float is NaN or infinite if and only if all bits of its exponent are set."""


def find_nonfinite(path: Path, header: Header) -> str | None:
    """The first tensor, in the file's order, that has a NaN or an infinity; memory is constant."""
    import numpy as np  # lazily: the idle daemon does without

    block = bytearray(BLOCK_BYTES)
    exponents = np.empty(BLOCK_BYTES, dtype=np.uint8)
    try:
        with FileIO(path) as file:
            for span, tensor in sorted(zip(header.spans, header.manifest, strict=True)):
                if tensor.dtype not in _EXPONENT:
                    continue
                kind, mask = _EXPONENT[tensor.dtype]
                file.seek(header.data_offset + span.begin)
                for part in _read_blocks(file, span.end - span.begin, block):
                    bits = np.frombuffer(part, dtype=kind)
                    masked = exponents.view(kind)[: bits.size]
                    np.bitwise_and(bits, bits.dtype.type(mask), out=masked)
                    if masked.max() == mask:  # no masked value exceeds the mask
                        return tensor.name
    except OSError as error:
        raise StoreError("E-STORE-DAMAGED", f"{path} cannot be read: {error}") from error
    return None


def _read_blocks(file: FileIO, length: int, block: bytearray) -> Iterator[memoryview]:
    """The next `length` bytes in parts, each of them in the same buffer and full but for the last."""
    while length:
        part = memoryview(block)[:length]
        filled = 0
        while filled < len(part):
            count = file.readinto(part[filled:])  # which may stop early
            if not count:
                raise BundleError("E-BUNDLE-FORMAT", "not a bundle: the file became shorter while it was read")
            filled += count
        yield part
        length -= len(part)
