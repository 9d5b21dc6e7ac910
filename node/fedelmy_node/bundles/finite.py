"""NaN and infinity in a bundle, found from the exponents' bits, block by block, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fedelmy_node.errors import BundleError

__all__ = ["Exponents", "nonfinite"]

BLOCK_BYTES: Final = 2**20
_EXPONENT: Final[Mapping[str, tuple[str, int]]] = {
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
    "F32": ("<u4", 0x7F80_0000),
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
}
"""A float is NaN or infinite if and only if all bits of its exponent are set."""


class Exponents:
    """Looks at the exponents of floats, with one buffer for all blocks."""

    def __init__(self) -> None:
        import numpy  # lazily: the idle daemon does without

        self._np = numpy
        self._masked = numpy.empty(BLOCK_BYTES, dtype=numpy.uint8)

    @staticmethod
    def know(dtype: str) -> bool:
        """Whether a type has exponents at all; the others are always finite."""
        return dtype in _EXPONENT

    def all_finite(self, part: memoryview | bytes, dtype: str) -> bool:
        """Whether a part of a tensor, of whole values, has no NaN and no infinity."""
        kind, mask = _EXPONENT[dtype]
        bits = self._np.frombuffer(part, dtype=kind)
        room = self._masked.view(kind)
        for begin in range(0, bits.size, room.size):
            some = bits[begin : begin + room.size]
            masked = room[: some.size]
            self._np.bitwise_and(some, some.dtype.type(mask), out=masked)
            if masked.max() == mask:  # no masked value exceeds the mask
                return False
        return True


def nonfinite(tensor: str) -> BundleError:
    """The refusal of a bundle because of this tensor's values."""
    return BundleError("E-BUNDLE-NONFINITE", f"tensor {tensor!r} has values that are not finite")
