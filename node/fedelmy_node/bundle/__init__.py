"""Bundle files as the daemon handles them: checked without torch."""
