"""Write docs/reference/ from the commands themselves: one page for fedelmy-node, one for
fedelmy-launch.

python docs/generate_reference.py            write the pages
python docs/generate_reference.py --check    fail if they differ from what would be written
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from fedelmy_launcher.cli import group as launcher
from fedelmy_node.cli import group as node

FOLDER = Path(__file__).with_name("reference")
_WIDTH = 100_000
"""Wider than any paragraph: these pages are not wrapped."""
_EXIT = re.compile(r"^Exit code", re.MULTILINE)
_HEAD = """\
# {name}(1)

<!-- Generated from the commands by docs/generate_reference.py; do not edit. -->

"""
_EXITS = "As [errors.md](../errors.md) says: 0 on success, 2 for a wrong option, otherwise that of the error's class."


def page(group: click.Group) -> Iterator[str]:
    """A whole command with everything below it."""
    name = group.name or ""
    yield _HEAD.format(name=name)
    yield "## NAME\n\n"
    paragraphs, examples, _ = described(group)
    yield f"**{name}** - {paragraphs[0]}\n\n"
    yield from (f"{text}\n\n" for text in paragraphs[1:])
    for title, lines in examples:
        yield f"{title}\n\n```\n{lines}\n```\n\n"
    yield "## COMMANDS\n\n| command | does |\n|---|---|\n"
    commands = list(walk(group, (name,)))
    for path, command, _ in commands:
        yield f"| [`{' '.join(path)}`](#{anchor(path)}) | {first_sentence(command)} |\n"
    yield "\nEvery command has `-h`, `--help`. "
    yield "An option that names an environment variable takes its value from there if it is not given.\n"
    for path, command, context in commands:
        yield from section(path, command, context)
    yield "\n## EXIT CODES\n\n"
    yield "The codes of all commands, and what to do about every error, are in [errors.md](../errors.md).\n"


def walk(
    group: click.Group, path: tuple[str, ...], parent: click.Context | None = None
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    context = click.Context(group, parent=parent, info_name=path[-1], terminal_width=_WIDTH)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if command.hidden:
            continue
        here = click.Context(command, parent=context, info_name=name, terminal_width=_WIDTH)
        yield (*path, name), command, here
        if isinstance(command, click.Group):
            yield from walk(command, (*path, name), context)


def section(path: tuple[str, ...], command: click.Command, context: click.Context) -> Iterator[str]:
    paragraphs, examples, exits = described(command)
    yield f"\n## {' '.join(path)}\n\n"
    yield f"```\n{' '.join((' '.join(path), *command.collect_usage_pieces(context)))}\n```\n\n"
    yield from (f"{text}\n\n" for text in paragraphs)
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    if options:
        yield "| option | environment | default | meaning |\n|---|---|---|---|\n"
        for option in options:
            yield f"| {' | '.join(cell(text) for text in row(option, context))} |\n"
        yield "\n"
    if not isinstance(command, click.Group):
        yield f"**Exit code.** {' '.join(exits) or _EXITS}\n\n"
    for title, lines in examples:
        yield f"{title}\n\n```\n{lines}\n```\n"


def described(command: click.Command) -> tuple[list[str], list[tuple[str, str]], list[str]]:
    """Paragraphs, examples (title and lines) and what it says of exit codes, from the help of a
    command.
    """
    paragraphs, examples, exits = [], [], []
    for block in re.split(
        r"\n\s*\n", inspect.cleandoc(command.help or "").replace("\b\n", "\n\b\n")
    ):
        text = block.strip("\n")
        if text.startswith("\b"):
            title, _, lines = text.removeprefix("\b\n").partition("\n")
            examples.append((f"**{title.strip().rstrip(':')}**", inspect.cleandoc(lines)))
        elif text.strip():
            flowing = " ".join(text.split())
            found = _EXIT.search(text)
            before, exit_text = (
                (text[: found.start()], text[found.start() :]) if found else (flowing, "")
            )
            if before.strip():
                paragraphs.append(escape(" ".join(before.split())))
            if exit_text:
                said = " ".join(exit_text.split()).removeprefix("Exit code ").replace("; ", ", ")
                exits.append(escape(said[0].upper() + said[1:]))
    return paragraphs, examples, exits


def row(option: click.Option, context: click.Context) -> tuple[str, str, str, str]:
    record = option.get_help_record(context)
    assert record is not None, option
    variables = option.envvar if isinstance(option.envvar, str) else ", ".join(option.envvar or ())
    help_text = option.help or ""
    said = re.search(r"\s*\[default: (.+?)\]$", help_text)
    default = said[1] if said else default_of(option)
    meaning = help_text[: said.start()] if said else help_text
    return (
        f"`{record[0]}`",
        f"`{variables}`" if variables else "",
        f"`{default}`" if default else "",
        meaning,
    )


def default_of(option: click.Option) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    value: Any = option.default
    if not option.show_default or value is None or callable(value):
        return ""
    return str(value)


def first_sentence(command: click.Command) -> str:
    return cell(described(command)[0][0].split(". ")[0].rstrip("."))


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def escape(text: str) -> str:
    """Words in angle brackets are placeholders, not HTML."""
    return text.replace("<", "&lt;")


def anchor(path: tuple[str, ...]) -> str:
    return "-".join(path)


def main() -> None:
    pages = {FOLDER / f"{group.name}.md": "".join(page(group)) for group in (node, launcher)}
    if sys.argv[1:] == ["--check"]:
        stale = [
            path.name
            for path, text in pages.items()
            if not path.exists() or path.read_text("utf-8") != text
        ]
        if stale:
            sys.exit(f"{', '.join(stale)} out of date, run `python docs/generate_reference.py`")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        FOLDER.mkdir(exist_ok=True)
        for path, text in pages.items():
            path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
