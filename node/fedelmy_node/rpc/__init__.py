"""Everything that knows of gRPC; no other package imports grpc or the generated code.

    settings    what both ends of a connection agree on
    preflight   who is at an address: a TLS handshake that names what is wrong; `reaching` is the connection below it,
                `server_names` what is asked for
    dial        the one place that makes channels
    bridge      connections to sites that cannot be called, carried by calls; relaying: the node at which they wait;
                awaiting: what they ask of it
    serve       the one place that makes servers
    guard       who may call what: one interceptor on every server
    quotas      how much of the node one caller may have; inflow: what it sends must keep coming
    alarms      looks at things when it is time
    calling     the call that a thread answers, for whoever writes it down
    faults      errors across the wire
    convert     domain objects to messages and back; bounds: what the fields of a message may hold
    services    what a node answers; endpoint puts it on the network and on the Unix socket
    clients     what one process asks of another; admin finds the daemon of a state directory

Two variables are set before grpc is imported, unless the user set them: grpc's own log lines would mix with
ours (every failure is raised with a code anyway), and its own DNS resolver would differ from the system's,
which the pre-flight uses, so that a name could pass the pre-flight and then not be found. And grpc is imported
here without what it brings along and nothing here uses: its half for asyncio, and asyncio's for ssl. Together they
are 2 MB, and an idle daemon is small; `ssl` itself is loaded by the pre-flight, when somebody is dialled.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")


class _Later:
    """Finds grpc's half for asyncio, and loads it when somebody uses it."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == "grpc.aio" else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def _import_grpc() -> None:
    blocked = "ssl" not in sys.modules  # whoever has it already keeps it
    sys.meta_path.insert(0, _Later)
    if blocked:
        sys.modules["ssl"] = None  # type: ignore[assignment]
    try:
        import grpc  # noqa: F401
    finally:
        sys.meta_path.remove(_Later)
        if blocked:
            del sys.modules["ssl"]


if "grpc" not in sys.modules:
    _import_grpc()
