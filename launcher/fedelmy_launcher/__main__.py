"""`python -m fedelmy_launcher` is `fedelmy-launch` of this very Python."""

from fedelmy_node.children import leave_working_directory

leave_working_directory()

from fedelmy_launcher.cli import main  # noqa: E402 - not before what it imports is ours

__all__: list[str] = []

main()
