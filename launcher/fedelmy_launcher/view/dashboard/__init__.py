"""The dashboard: a live, read-only view of runs in the browser, served on loopback."""
