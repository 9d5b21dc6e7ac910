"""A whole node inside the test's own process, on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fedelmy_node.identity.keystore import Identity
from fedelmy_node.node import Node

_SECONDS: Final = 20.0
"""To begin, and to end, on a busy machine."""


@contextmanager
def serving(node: Node) -> Iterator[Node]:
    """The node answers while the block runs, and has ended after it."""
    thread = threading.Thread(target=node.serve)
    thread.start()
    try:
        assert node.ready.wait(_SECONDS)
        yield node
    finally:
        node.stop()
        thread.join(_SECONDS)


def lay_down(state: Path, own: Identity) -> Path:
    """A state directory that has this identity."""
    home = state / "identity"
    home.mkdir(parents=True)
    state.chmod(0o700)
    home.chmod(0o700)
    for file, data in (
        ("key.pem", own.key_pem),
        ("certificate.pem", own.certificate_pem),
        ("ca.pem", own.ca_pem),
    ):
        (home / file).write_bytes(data)
        (home / file).chmod(0o600)
    return state
