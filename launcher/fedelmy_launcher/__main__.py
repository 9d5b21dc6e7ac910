"""`python -m fedelmy_launcher` runs `fedelmy-launch` with this Python."""

from fedelmy_node.child_process import leave_working_directory

leave_working_directory()

from fedelmy_launcher.cli import main  # noqa: E402 - only now: imports must not come from the cwd

__all__: list[str] = []

main()
