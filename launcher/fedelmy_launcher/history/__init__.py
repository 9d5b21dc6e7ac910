"""How a run came about: the fold that report and dashboard show, and how it is read from the sites."""

from fedelmy_launcher.history.fold import FORMAT, RunHistory

__all__ = ["RunHistory", "FORMAT"]
