"""The blocks in which a bundle is sent, and their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BLOCK_BYTES: Final = 1 << 20
"""Size of every block but the last: fast to send, cheap to repeat."""
SMALLEST_BLOCK_BYTES: Final = 64 << 10
"""Every receiver accepts blocks this small; for links that break often."""
LARGEST_BLOCK_BYTES: Final = 2 << 20
"""Every receiver accepts blocks this large; a message (`MESSAGE_BYTES`) has room for one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One piece of a bundle."""

    index: int
    data: bytes | memoryview
    running_sha256: bytes
    """Digest of the bundle up to and including `data`; in the last block, of the whole bundle."""
