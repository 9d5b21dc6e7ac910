"""Tunnels for sites that cannot be called: they wait at a peer and call back."""
