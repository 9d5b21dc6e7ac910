"""Everything that knows of gRPC; no other package imports grpc or the generated code.

    settings    what both ends of a connection agree on
    preflight   who is at an address: a TLS handshake that names what is wrong
    dial        the one place that makes channels
    serve       the one place that makes servers
    guard       who may call what: one interceptor on every server
    faults      errors across the wire
    convert     domain objects to messages and back
    services    what a node answers; endpoint puts it on the network and on the Unix socket
    clients     what one process asks of another; admin finds the daemon of a state directory

Two variables are set before grpc is imported, unless the user set them: grpc's own log lines would mix with
ours (every failure is raised with a code anyway), and its own DNS resolver would differ from the system's,
which the pre-flight uses, so that a name could pass the pre-flight and then not be found.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")
