"""Checks of a site before a run, for `fedelmy-node doctor` and `fedelmy-launch check`.

    identity_checks   key, certificate, dates, revocation lists, file permissions
    peer_checks       the connection to a peer: DNS, TCP, TLS, gRPC, version, clock, speed
    machine_checks    clock, port, running daemon
    training_checks   disk, data, device, a trial, the estimated time
    site_checks       all of it, on the site's own machine, with or without a daemon
    plan_checks       the same for a plan, inside the daemon

Checks yield findings as they come and change nothing. An idle daemon imports none of them.
"""
