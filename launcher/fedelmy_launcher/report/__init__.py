"""The report of a run: figures, sections and one self-contained page, made from `RunHistory.encoded()`."""
