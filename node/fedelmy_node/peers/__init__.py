"""The neighbours of a site: connections, watching, and tunnels to sites that cannot be called."""
