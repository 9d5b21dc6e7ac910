"""Views of a run: one fold of its events, drawn in the terminal, the report and the dashboard."""
