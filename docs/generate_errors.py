"""Write docs/errors.md from the catalogue of errors.

python docs/generate_errors.py            write it
python docs/generate_errors.py --check    fail if what is there differs from what would be written
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from fedelmy_node.domain import errors

PAGE = Path(__file__).with_name("errors.md")
_TREE_LINE = re.compile(r"── (?P<name>\w+) +(?P<meaning>.+?) +exit (?P<exit>\d+)$", re.MULTILINE)
_HEAD = """\
# Errors and exit codes

<!-- Generated from node/fedelmy_node/domain/errors.py by docs/generate_errors.py; do not edit. -->

Every failure has a stable code, a sentence that says what is wrong, and advice:

```
error E-CONSENT-PEER: north: site north has not agreed to send to east
  Start the node of north with --peer east=127.0.0.1:51002.
```

The tables list the default advice; a command prints more specific advice where it has some. With
`--json` the error is printed as `{"error": {"code", "message", "hint"}}` on standard output. Between
machines a code is sent with its gRPC status, so an error keeps its code on the way from a site to
the operator.

"""
_OTHER_EXITS = (
    (
        1,
        "a question was not answered with yes, so nothing was done; `fedelmy-node health`: the daemon answers, but is not healthy",
    ),
    (
        errors.EXIT_SUBSET,
        "a run finished, but on a subset of its sites (`run`, `run --attach`, `status` of a run that has ended)",
    ),
    (errors.EXIT_DETACHED, "Ctrl-C ended the command; a started run continues"),
)
_FOOT = """\

A node with an internal error also exits with 70; its runs continue after a restart. A second signal
to a node that is shutting down ends it at once, with 130 (Ctrl-C) or 143 (SIGTERM). A command whose
output pipe was closed exits with 141. A wrong option or argument exits with 2, without a code.
"""


def meanings() -> dict[str, str]:
    """What each class of errors is about, from the tree in the docstring of the errors module."""
    return {match["name"]: match["meaning"] for match in _TREE_LINE.finditer(errors.__doc__ or "")}


def classes() -> list[type[errors.FedelmyError]]:
    """The classes in the order of the catalogue."""
    return list(dict.fromkeys(entry.kind for entry in errors.CATALOGUE.values()))


def page() -> Iterator[str]:
    about = meanings()
    rows = [(kind.exit_code, f"{about[kind.__name__]} (`{kind.__name__}`)") for kind in classes()]
    yield _HEAD
    yield "## Exit codes\n\n| exit code | meaning |\n|---|---|\n| 0 | success |\n"
    yield from (f"| {code} | {text} |\n" for code, text in sorted([*rows, *_OTHER_EXITS]))
    yield _FOOT
    for kind in classes():
        yield f"\n## {kind.__name__}: {about[kind.__name__]}\n\nExit code {kind.exit_code}.\n\n"
        yield "| code | gRPC status | what to do |\n|---|---|---|\n"
        for code, entry in errors.CATALOGUE.items():
            if entry.kind is kind:
                yield f"| `{code}` | {entry.status} | {entry.advice} |\n"


def main() -> None:
    text = "".join(page())
    if sys.argv[1:] == ["--check"]:
        if not PAGE.exists() or PAGE.read_text("utf-8") != text:
            sys.exit(f"{PAGE.name} is out of date, run `python docs/generate_errors.py`")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
