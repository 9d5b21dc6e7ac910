"""The pages of docs/reference/ are what the commands say; and every command says enough."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import click
import pytest

ROOT = Path(__file__).parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_reference", ROOT / "docs" / "generate_reference.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = load()
COMMANDS = [
    (" ".join(path), command)
    for group in (reference.node, reference.launcher)
    for path, command, _ in reference.walk(group, (group.name,))
]


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_command_explains_itself(name: str, command: click.Command) -> None:
    paragraphs, examples, _ = reference.described(command)
    assert paragraphs, f"{name} says nothing"
    assert any(title.startswith("**Example") for title, _ in examples), f"{name} has no examples"
    program = name.split(maxsplit=1)[0]
    for _, lines in examples:
        # Completion is one command of both programs.
        assert program in lines or name.endswith(" completion"), (
            f"an example of {name} does not call {program}"
        )
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts[0]} has no help"


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_command_speaks_to_machines(name: str, command: click.Command) -> None:
    if isinstance(command, click.Group) or name.endswith((" serve", " completion")):
        return  # a daemon has its log, a script is one
    assert any("--json" in parameter.opts for parameter in command.params), f"{name} has no --json"


@pytest.mark.parametrize(
    "group", [reference.node, reference.launcher], ids=lambda group: group.name
)
def test_the_pages_are_up_to_date(group: click.Group) -> None:
    page = ROOT / "docs" / "reference" / f"{group.name}.md"
    assert page.read_text("utf-8") == "".join(reference.page(group)), (
        "run `python docs/generate_reference.py`"
    )
