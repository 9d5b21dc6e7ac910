"""What a site can find out before a run: `fedelmy-node doctor`, and the examination that an operator asks for.

    identity   key, certificate, dates, revocation lists, files
    peers      the way to a peer: name, connection, TLS, certificate, gRPC, versions, clock, time and width
    machine    clock, port, the daemon that runs already
    work       disk, data, device, a trial, and how long it would take
    site       all of it, on the site's own machine, with or without a daemon
    plan       the same for a plan, inside the daemon

Each gives findings as they come. Nothing here is imported by an idle daemon, and nothing is changed by it.
"""
