"""How long certificates are valid."""

from __future__ import annotations

from typing import Final

LEAF_DAYS: Final = 825
"""Long enough for a study; some TLS stacks reject certificates with a longer lifetime."""
