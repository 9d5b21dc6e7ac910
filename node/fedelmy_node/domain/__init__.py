"""Core types: names, federation, plan, events, errors. No I/O, no gRPC, no torch."""
