"""The gRPC surface of a node; no other package imports grpc or the generated code.

server, services, tunnel_service, health_service     what a node serves, and where
authorization, quotas, stall_limits, call_context    who may call what, how often, how slowly
channel, handshake, tcp, server_names                connections to other nodes
tunnel_socket                                        connections to sites that cannot be called
clients, block_stream, link_test                     what one process asks of another
convert*, field_validation, error_mapping            domain objects and errors as messages
channel_options                                      settings that both ends share
"""

import os

# Set before grpc is imported, unless the user has set them. grpc's own log lines would mix with
# ours, and every failure is raised with a code anyway. Its own DNS resolver would differ from the
# system's, which the handshake uses: a name could resolve there and not in the channel.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")
