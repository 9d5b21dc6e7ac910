"""`python -m fedelmy_node` runs `fedelmy-node` with this Python."""

from fedelmy_node.child_process import leave_working_directory

leave_working_directory()

from fedelmy_node.cli import main  # noqa: E402 - only after the import path is safe

__all__: list[str] = []

main()
