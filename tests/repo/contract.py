"""Everything that other people's scripts, files, dashboards and peers rely on, collected from the
code.

`contract.json` beside this file is what was promised. Texts may change; these names and numbers may
not, except by adding. After an intended addition: `python -m tests.repo.contract --write`.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import sys
import tempfile
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from fedelmy_launcher.cli import group as launch_group
from fedelmy_launcher.experiments.grid import Experiment
from fedelmy_launcher.plans import topologies
from fedelmy_node.cli import group as node_group
from fedelmy_node.config import federation_file, plan_file, site_file
from fedelmy_node.domain import artifact, errors, event_data, events, reports, step_traits
from fedelmy_node.store import schema
from fedelmy_node.training import data, models, strategies
from fedelmy_proto.v1 import admin_pb2, control_pb2, peer_pb2, relay_pb2, transfer_pb2
from tests.support.scrapes import full_scrape

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_suffix(".json")
PROGRAMS = {"fedelmy-node": node_group, "fedelmy-launch": launch_group}


def contract() -> dict[str, Any]:
    return {
        "errors": {
            code: [entry.kind.__name__, entry.kind.exit_code, entry.status]
            for code, entry in _catalogue()
        },
        "exit_codes": {
            name: getattr(errors, name) for name in sorted(vars(errors)) if name.startswith("EXIT_")
        },
        "commands": {" ".join(path): _parameters(command) for path, command in _commands()},
        "files": {
            "site.toml": sorted(_keys(site_file._SiteFile)),
            "federation.toml": sorted(_keys(federation_file._File)),
            "experiment": sorted(_keys(Experiment)),
            "plan file": sorted(_keys(plan_file._File)),
        },
        "settings": {
            kind: {name: sorted(_settings(home, name)) for name in sorted(registry._built_in)}
            for kind, home, registry in (
                ("strategies", strategies.__name__, strategies.INSTALLED),
                ("topologies", topologies.__name__, topologies.INSTALLED),
            )
        },
        "names": {
            "models": sorted(models.INSTALLED._built_in),
            "data": sorted(data.INSTALLED._built_in),
        },
        "entry_points": {
            "groups": sorted(
                registry.INSTALLED.group for registry in (strategies, models, data, topologies)
            ),
            "scripts": _project()["scripts"],
        },
        "environment": sorted(set(_texts(re.compile(r"FEDELMY_[A-Z_]+")))),
        "metrics": _metrics(),
        "values": {
            found.__name__: [member.value for member in found]
            for found in (events.RunState, events.StepState, events.EdgeState, events.EventKind)
        }
        | {"operations": list(step_traits.BUILT_IN)},
        "event_data": {kind.value: sorted(shape) for kind, shape in event_data._DATA.items()},
        "reports": {
            kind.__name__: sorted(_keys(kind))
            for module in (reports, artifact, events)
            for kind in vars(module).values()
            if dataclasses.is_dataclass(kind)
            and isinstance(kind, type)
            and kind.__module__ == module.__name__
        },
        "journal": _tables(),
        "wire": _wire(),
    }


def _catalogue() -> list[tuple[str, errors.Entry]]:
    return sorted(errors.CATALOGUE.items())


def _project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"])


def _commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    def walk(
        path: tuple[str, ...], command: click.Command
    ) -> Iterator[tuple[tuple[str, ...], click.Command]]:
        if not isinstance(command, click.Group):
            yield path, command
            return
        with click.Context(command) as context:
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from walk((*path, name), found)

    for program, group in PROGRAMS.items():
        yield from walk((program,), group)


def _parameters(command: click.Command) -> list[str]:
    return sorted(
        " ".join(sorted([*parameter.opts, *parameter.secondary_opts]))
        if isinstance(parameter, click.Option)
        else parameter.make_metavar(click.Context(command))
        for parameter in command.params
    )


def _keys(kind: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of the fields of a dataclass, through tuples, mappings and unions."""
    hints = typing.get_type_hints(kind, include_extras=False)
    for field in dataclasses.fields(kind):
        name = f"{prefix}{field.name}"
        yield name
        for inner in _dataclasses_in(hints[field.name]):
            yield from _keys(inner, f"{name}.")


def _dataclasses_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for argument in typing.get_args(hint):
        if not isinstance(hint, types.GenericAlias | type) or argument is not hint:
            yield from _dataclasses_in(argument)


def _settings(home: str, name: str) -> Iterator[str]:
    settings = getattr(import_module(f"{home}.{name}"), "Settings", None)
    return _keys(settings) if settings else iter(())


def _texts(pattern: re.Pattern[str]) -> Iterator[str]:
    """String constants of the product that match as a whole."""
    for root in ("node", "launcher"):
        for path in sorted((ROOT / root).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if (
                    isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and pattern.fullmatch(node.value)
                ):
                    yield node.value


def _metrics() -> dict[str, list[str]]:
    """Every series of a node that has met everything, with its labels."""
    found: dict[str, set[str]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, labels in full_scrape(Path(directory) / "journal.db").series():
            found.setdefault(name, set()).update(labels)
    return {name: sorted(labels) for name, labels in found.items() if name.startswith("fedelmy_")}


def _tables() -> dict[str, list[str]]:
    database = schema.open_database(":memory:")
    names = [
        row[0]
        for row in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        )
    ]
    return {
        name: [row[1] for row in database.execute(f"PRAGMA table_info({name})")] for name in names
    }


def _wire() -> dict[str, Any]:
    """Services, and every message and enumeration with its numbers."""
    files = [
        module.DESCRIPTOR for module in (admin_pb2, control_pb2, peer_pb2, relay_pb2, transfer_pb2)
    ]
    return {
        "services": {
            service.full_name: {
                method.name: f"{method.input_type.name} -> {method.output_type.name}"
                for method in service.methods
            }
            for file in files
            for service in file.services_by_name.values()
        },
        "messages": dict(pair for file in files for pair in _messages(file.message_types_by_name)),
        "enums": {
            enum.full_name: {value.name: value.number for value in enum.values}
            for file in files
            for enum in file.enum_types_by_name.values()
        },
    }


def _messages(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for message in found.values():
        yield (
            message.full_name,
            {field.name: [field.number, field.type, field.is_repeated] for field in message.fields},
        )
        yield from _messages({nested.name: nested for nested in message.nested_types})


def differences(promised: Any, found: Any, path: str = "") -> Iterator[str]:
    """What was promised and is not so any more, and what is new and not in the file."""
    if isinstance(promised, dict) and isinstance(found, dict):
        for key in promised.keys() | found.keys():
            where = f"{path}/{key}"
            if key not in found:
                yield f"gone: {where}"
            elif key not in promised:
                yield f"new: {where}"
            else:
                yield from differences(promised[key], found[key], where)
    elif isinstance(promised, list) and isinstance(found, list) and path.split("/")[1] != "errors":
        yield from (f"gone: {path}/{item}" for item in promised if item not in found)
        yield from (f"new: {path}/{item}" for item in found if item not in promised)
    elif promised != found:
        yield f"changed: {path}: {promised} -> {found}"


if __name__ == "__main__":
    text = json.dumps(json.loads(json.dumps(contract())), indent=1, sort_keys=True) + "\n"
    if "--write" in sys.argv:
        FILE.write_text(text, "utf-8")
    else:
        sys.stdout.write(text)
