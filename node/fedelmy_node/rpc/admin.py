"""The way from a command on this machine to the daemon of a state directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedelmy_node.rpc.clients import AdminClient
from fedelmy_node.rpc.serve import open_local_channel
from fedelmy_node.store.layout import Layout

__all__ = ["admin_client"]


@contextmanager
def admin_client(state: Path) -> Iterator[AdminClient]:
    """A client of the running daemon; E-STORE-DAEMON if there is none."""
    client = AdminClient(open_local_channel(Layout(state.absolute()).socket))
    try:
        yield client
    finally:
        client.close()
