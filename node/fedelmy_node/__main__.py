"""`python -m fedelmy_node` is `fedelmy-node` of this very Python."""

from fedelmy_node.cli import main

__all__: list[str] = []

main()
