"""A run in the terminal: live view, plain lines or JSON lines, and the result table."""
