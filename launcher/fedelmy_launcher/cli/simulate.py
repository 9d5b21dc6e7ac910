"""`fedelmy-launch simulate`: the plan of a federation in one process."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedelmy_launcher.cli.options import check_code, code_option, federation_argument, json_option, run_option
from fedelmy_node.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fedelmy_node.domain.federation import Federation, Member
    from fedelmy_node.domain.names import SiteName

__all__ = ["simulate"]


@click.command()
@federation_argument
@click.option(
    "--data",
    "data",
    multiple=True,
    metavar="[SITE=]KIND[:PATH]",
    help="Data of a site, or of all sites; before what the file says. Repeatable.",
)
@click.option("--indices", multiple=True, metavar="SITE=FILE", help="The subset that is a site's. Repeatable.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Keep the bundles in this directory.")
@click.option(
    "--report",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the run onto this page, as `fedelmy-launch report` does.",
)
@code_option
@run_option("Name of the run; it does not change the result.")
@json_option
def simulate(
    federation: Path, data: tuple[str, ...], indices: tuple[str, ...], out: Path | None, page: Path | None,
    code: tuple[str, ...], run_name: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Execute FEDERATION in this process, with the training code of the nodes, for the same bundle bytes.

    \b
    Examples:
      fedelmy-launch simulate federation.toml
      fedelmy-launch simulate federation.toml --data digits --indices north=parts/north.json
      fedelmy-launch simulate federation.toml --report simulated.html
      fedelmy-launch simulate federation.toml --allow-code ward.models:tiny
    """
    from fedelmy_launcher.federation_file import load_federation
    from fedelmy_launcher.following import show_result
    from fedelmy_launcher.history import RunHistory
    from fedelmy_launcher.live.screen import open_screen
    from fedelmy_launcher.plans import compile_plan, new_run_id
    from fedelmy_launcher.progress import RunProgress
    from fedelmy_launcher.simulate import Simulation, data_of
    from fedelmy_node.config.decode import encode
    from fedelmy_node.domain.events import Event
    from fedelmy_node.domain.names import run_id

    read = load_federation(federation)
    described = _with_data(read, data, indices)
    check_code(_named_by(read, described), code)
    specs = data_of(described)
    plan = compile_plan(described, new_run_id(described) if run_name is None else run_id(run_name))
    progress = RunProgress(plan)
    history = RunHistory(plan, encode(plan.recipe))
    with ExitStack() as stack:
        directory = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedelmy-")))
        screen = stack.enter_context(open_screen(progress, as_json=as_json))

        def tell(event: Event) -> None:
            progress.add(event)
            history.add(event)
            screen.event(event)

        Simulation(plan, specs, directory.absolute(), tell, code=code).run()
    if page is not None:
        from fedelmy_launcher.report.page import write_report

        write_report(history.encoded(), page, page.with_suffix(".json"))
    return show_result(progress, as_json=as_json)


def _named_by(read: Federation, described: Federation) -> Iterator[str]:
    """What the file itself names that could be code; --data is the word of whoever simulates."""
    from fedelmy_node.training.data import parse_source

    yield read.recipe.model.name
    for before, after in zip(read.members, described.members, strict=True):
        if before.data is not None and before.data == after.data:
            yield parse_source(before.data).kind


def _with_data(federation: Federation, data: tuple[str, ...], indices: tuple[str, ...]) -> Federation:
    """The flags put into the federation's members."""
    members = {member.name: member for member in federation.members}
    for text in data:
        name, separator, source = text.partition("=")
        named = separator and ":" not in name
        for member in [_known(name, members)] if named else list(members.values()):
            members[member.name] = replace(member, data=source if named else text)
    for text in indices:
        name, separator, path = text.partition("=")
        if not separator:
            raise DataError("E-DATA-INDICES", f"{text!r} is not SITE=FILE", hint="Write --indices north=north.json.")
        member = _known(name, members)
        members[member.name] = replace(member, indices=str(Path(path).absolute()))
    return replace(federation, members=tuple(members.values()))


def _known(name: str, members: Mapping[SiteName, Member]) -> Member:
    for site, member in members.items():
        if site == name:
            return member
    raise ConfigError("E-CONFIG-VALUE", f"the federation has no site {name!r}", hint=f"Sites: {', '.join(members)}.")
