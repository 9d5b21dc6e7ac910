"""`python -m fedelmy_launcher` is `fedelmy-launch` of this very Python."""

from fedelmy_launcher.cli import main

__all__: list[str] = []

main()
