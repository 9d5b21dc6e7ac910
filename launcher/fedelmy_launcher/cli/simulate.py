"""`fedelmy-launch simulate`: execute the plan of a federation in one process."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedelmy_launcher.cli import options
from fedelmy_node.domain.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fedelmy_node.domain.federation import Federation, Member
    from fedelmy_node.domain.names import SiteName

_DATA = "Data of a site, or of all sites; overrides the file. Repeatable."
_WEIGHTS = "Directory with weights files.  [default: weights beside FEDERATION]"
_INDICES = "Indices file with a site's subset. Repeatable."


@click.command()
@options.federation_argument
@click.option("--data", "data", multiple=True, metavar="[SITE=]KIND[:PATH]", help=_DATA)
@click.option("--indices", multiple=True, metavar="SITE=FILE", help=_INDICES)
@click.option("--weights", type=options.DIRECTORY, envvar="FEDELMY_WEIGHTS", help=_WEIGHTS)
@click.option("--out", type=options.DIRECTORY, help="Keep the bundles in this directory.")
@click.option(
    "--report", "page", type=options.FILE, help="Write a report, as `fedelmy-launch report`."
)
@options.code_option
@options.run_option("Name of the run; it does not change the result.")
@options.json_option
def simulate(
    federation: Path,
    data: tuple[str, ...],
    indices: tuple[str, ...],
    weights: Path | None,
    out: Path | None,
    page: Path | None,
    code: tuple[str, ...],
    run_name: str | None,
    as_json: bool,
) -> int:
    """Execute FEDERATION in this process, with the nodes' training code and the same bundle bytes.

    \b
    Examples:
      fedelmy-launch simulate federation.toml
      fedelmy-launch simulate federation.toml --data digits --indices north=parts/north.json
      fedelmy-launch simulate federation.toml --report simulated.html
      fedelmy-launch simulate federation.toml --allow-code ward.models:tiny
    """
    from fedelmy_launcher.plans.compiler import compile_plan, load_federation, new_run_id
    from fedelmy_launcher.simulate.simulation import Simulation, data_of
    from fedelmy_launcher.view.history.fold import RunHistory
    from fedelmy_launcher.view.progress import RunProgress
    from fedelmy_launcher.view.terminal.follow import show_result
    from fedelmy_launcher.view.terminal.screen import open_screen
    from fedelmy_node.config.decode import encode
    from fedelmy_node.domain.events import Event
    from fedelmy_node.domain.names import run_id

    read = load_federation(federation)
    described = _with_data(read, data, indices)
    options.check_code(_named_by(read, described), code)
    specs = data_of(described)
    plan = compile_plan(described, new_run_id(described) if run_name is None else run_id(run_name))
    options.warn_of_recipe(described)
    progress = RunProgress(plan)
    history = RunHistory(plan, encode(plan.recipe), simulated=True)
    with ExitStack() as stack:
        directory = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedelmy-")))
        screen = stack.enter_context(open_screen(progress, as_json=as_json))

        def emit(event: Event) -> None:
            progress.add(event)
            history.add(event)
            screen.event(event)

        found = federation.absolute().parent / "weights" if weights is None else weights.absolute()
        Simulation(plan, specs, directory.absolute(), emit, code=code, weights=found).run()
    if page is not None:
        from fedelmy_launcher.view.report.page import write_report

        write_report(history.encoded(), page, page.with_suffix(".json"))
    return show_result(progress, as_json=as_json)


def _named_by(read: Federation, described: Federation) -> Iterator[str]:
    """Names in the file that could be code; those in --data are trusted."""
    from fedelmy_node.training.data import parse_source

    yield read.recipe.model.name
    for before, after in zip(read.members, described.members, strict=True):
        if before.data is not None and before.data == after.data:
            yield parse_source(before.data).kind


def _with_data(
    federation: Federation, data: tuple[str, ...], indices: tuple[str, ...]
) -> Federation:
    """The federation with --data and --indices applied to its members."""
    members = {member.name: member for member in federation.members}
    for text in data:
        name, separator, source = text.partition("=")
        named = separator and ":" not in name
        for member in [_known(name, members)] if named else list(members.values()):
            members[member.name] = replace(member, data=source if named else text)
    for text in indices:
        name, separator, path = text.partition("=")
        if not separator:
            hint = "Write --indices north=north.json."
            raise DataError("E-DATA-INDICES", f"{text!r} is not SITE=FILE", hint=hint)
        member = _known(name, members)
        members[member.name] = replace(member, indices=str(Path(path).absolute()))
    return replace(federation, members=tuple(members.values()))


def _known(name: str, members: Mapping[SiteName, Member]) -> Member:
    for site, member in members.items():
        if site == name:
            return member
    hint = f"Sites: {', '.join(members)}."
    raise ConfigError("E-CONFIG-VALUE", f"the federation has no site {name!r}", hint=hint)
