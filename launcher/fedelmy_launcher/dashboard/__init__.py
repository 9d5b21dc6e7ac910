"""The dashboard: runs in the browser, live, on loopback, read-only; folded from the same events as every other view."""
