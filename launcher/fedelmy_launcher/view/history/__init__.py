"""A run from its first event to its last, for report and dashboard."""
