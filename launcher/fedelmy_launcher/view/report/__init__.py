"""The report of a run: one self-contained page made from `RunHistory.encoded()`."""
