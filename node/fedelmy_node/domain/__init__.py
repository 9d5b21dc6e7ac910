"""The nouns of the product: names, federation, plan, events. Nothing here does I/O, gRPC or torch."""
