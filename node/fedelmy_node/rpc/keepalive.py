"""When a silent connection is pinged, and when it is given up; tunnels are such connections, too."""

from __future__ import annotations

from typing import Final

PING_MS: Final = 30_000
"""How long a connection may be silent before an end pings the other."""
PING_ALLOWED_MS: Final = 10_000
"""How often a server lets clients ping."""
PING_ANSWER_MS: Final = 20_000
"""How long a ping may go unanswered; grpc also gives it to the kernel as TCP_USER_TIMEOUT."""
