"""`fedelmy-launch experiment`: compute a grid of federations and seeds, as a table."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedelmy_launcher.cli import options
from fedelmy_node.cli.app import emit_json
from fedelmy_node.domain.errors import EXIT_DETACHED, ConfigError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from fedelmy_launcher.experiments.cells import Prepared
    from fedelmy_launcher.experiments.grid import Cell
    from fedelmy_launcher.experiments.results import Results
    from fedelmy_launcher.experiments.session import Session
    from fedelmy_launcher.experiments.worker_pool import News
    from fedelmy_node.domain.errors import FedelmyError
    from fedelmy_node.identity.keystore import Identity


_SETTING = "Setting in the file, such as full.  [default: small if there is one]"
_DATA = "Source of a data set. Repeatable."
_OUT = "Directory for results, table and plots.  [default: results/EXPERIMENT-SETTING]"
_WEIGHTS = "Directory with weights files.  [default: weights beside EXPERIMENT]"
_COLUMN = "Only this column or group. Repeatable."
_CHANGES = "Override a value in all cells. Repeatable."
_JOBS = "Parallel processes.  [default: cores / training.threads]"
_NODES = "Run the cells on the real nodes of this federation file, with their own data."


def _names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from fedelmy_launcher.experiments import experiments

    known = [CompletionItem(name, help=entry.title) for name, entry in experiments().items()]
    found = [item for item in known if item.value.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


@click.command()
@click.argument("name", metavar="EXPERIMENT", shell_complete=_names)
@click.option("--setting", help=_SETTING)
@click.option("--data", multiple=True, metavar="NAME=KIND[:PATH]", help=_DATA)
@click.option("--weights", type=options.DIRECTORY, envvar="FEDELMY_WEIGHTS", help=_WEIGHTS)
@click.option("--out", type=options.DIRECTORY, help=_OUT)
@click.option("--only", multiple=True, metavar="ROW", help="Only this row. Repeatable.")
@click.option("--column", "columns", multiple=True, metavar="COLUMN", help=_COLUMN)
@click.option("--seeds", metavar="N[,N...]", help="Use these seeds instead of the file's.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help=_CHANGES)
@click.option("--jobs", type=click.IntRange(1, 1024), help=_JOBS)
@click.option("--nodes", type=options.FILE, help=_NODES)
@options.code_option
@options.operator_options
@click.option("--dry-run", is_flag=True, help="Show what would be computed; compute nothing.")
@options.json_option
def experiment(
    name: str,
    setting: str | None,
    data: tuple[str, ...],
    weights: Path | None,
    out: Path | None,
    only: tuple[str, ...],
    columns: tuple[str, ...],
    seeds: str | None,
    changes: tuple[str, ...],
    jobs: int | None,
    nodes: Path | None,
    code: tuple[str, ...],
    operator: options.Operator,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Simulate the grid of EXPERIMENT, a name or a file, and write results, a table and plots.

    With --nodes the cells are runs of a real federation instead, one after another.

    A cell is a federation with a seed. Finished cells are kept: repeat the command to resume.
    `fedelmy-launch list experiments` lists those that come with the package.

    \b
    Examples:
      fedelmy-launch experiment table-8 --data cifar10=imagefolder:/data/cifar10 --dry-run
      fedelmy-launch experiment table-8 --data cifar10=imagefolder:/data/cifar10
      fedelmy-launch experiment table-3 --setting full --data pacs=/data/pacs
      fedelmy-launch experiment my-grid.toml --only FedSeq --seeds 0,1 --set training.epochs=3
      fedelmy-launch experiment table-3 --column CIFAR-10 --nodes federation.toml
    """
    from fedelmy_launcher.experiments import find_experiment
    from fedelmy_launcher.experiments.grid import (
        cells_of,
        chosen,
        distinct,
        parse_setting,
        read_experiment,
    )
    from fedelmy_launcher.experiments.results import known_results, open_results
    from fedelmy_launcher.experiments.session import Session
    from fedelmy_launcher.experiments.summary import ExperimentOutcome

    path = find_experiment(name)
    whole = read_experiment(path)
    setting = setting or whole.usual()
    grid, changed = whole.at(setting), parse_setting(changes)
    grid = replace(
        grid,
        rows=distinct(chosen(grid.rows, only, "row"), changed),
        columns=distinct(chosen(grid.columns, columns, "column"), changed),
        seeds=grid.seeds if seeds is None else _seeds(seeds),
    )
    outcome = ExperimentOutcome(path.stem, setting, grid, ", ".join(sorted(changes)))
    cells = cells_of(grid, changed)
    session = Session.of(outcome, cells, _preparation(cells, data, nodes))
    session.check_work()
    if nodes is None:  # on real nodes, each site decides for itself
        prepared = (each for each, _ in session.prepared.values())
        options.check_code((each.federation.recipe.model.name for each in prepared), code)
    directory = out or Path("results") / f"{path.stem}-{setting}"
    if dry_run:
        return _dry_run(session, session.take(known_results(directory)), directory, as_json=as_json)
    with open_results(directory) as results:
        left = session.take(results.known)
        if not as_json:
            _introduce(session, len(left), directory)
        try:
            identity = None if nodes is None or not left else operator()
            found = path.parent / "weights" if weights is None else weights
            computed = (
                _simulated(left, jobs, code, found.absolute())
                if nodes is None
                else _on_nodes(left, identity)
            )
            errors = _compute(session, left, results, computed, as_json=as_json) if left else []
        except KeyboardInterrupt:
            text = "Interrupted: finished cells are kept; repeat the command to resume."
            click.echo(f"\n{text}", err=True)
            return EXIT_DETACHED
        written = session.write(directory)
    _conclude(session, written, as_json=as_json)
    if errors:
        raise errors[0]
    return 0


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(map(int, text.split(","))))
    except ValueError as error:
        message = f"{text!r} is not a list of seeds"
        raise ConfigError("E-CONFIG-VALUE", message, hint="Write --seeds 0,1,2.") from error


def _introduce(session: Session, left: int, directory: Path) -> None:
    outcome = session.outcome
    click.echo(outcome.experiment.title)
    total = len(session.prepared)
    done = f", {total - left} of them already finished" if left < total else ""
    cells = "1 cell" if total == 1 else f"{total} cells"
    click.echo(f"setting {outcome.setting}: {cells}{done}; results in {directory}")
    for hint in session.hints:
        click.echo(f"no data: {hint}")


def _dry_run(session: Session, left: list[Prepared], directory: Path, *, as_json: bool) -> int:
    from fedelmy_launcher.experiments.session import Work
    from fedelmy_node.domain.text import duration_text

    if not as_json:
        _introduce(session, len(left), directory)
    samples, rate = 0, _rate(session)
    for prepared in left:
        work = Work.of(prepared).samples
        samples += work
        names = [cell.name for cell in session.prepared[prepared.key][1]]
        if as_json:
            emit_json({"key": prepared.key, "cells": names, "training_samples": work})
        else:
            sites = len(prepared.tables["sites"])
            text = f"{sites} sites, {work:,} training samples; {prepared.data}"
            click.echo(f"  {'; '.join(names)}: {text}")
    seconds = samples / rate if rate else None
    if as_json:
        emit_json({"cells": len(left), "training_samples": samples, "estimated_seconds": seconds})
        return 0
    expected = "" if seconds is None else f": about {duration_text(seconds)} one after another"
    click.echo(f"{len(left)} cells to compute, {samples:,} training samples{expected}")
    return 0


def _rate(session: Session) -> float | None:
    """Samples per second of the finished cells."""
    from fedelmy_launcher.experiments.session import Work

    finished = {result["key"]: result["seconds"] for result in session.outcome.results}
    samples = sum(Work.of(session.prepared[key][0]).samples for key in finished)
    seconds = sum(finished.values())
    return samples / seconds if samples and seconds else None


def _preparation(
    cells: list[Cell], data: tuple[str, ...], nodes: Path | None
) -> Callable[[Cell], Prepared]:
    """Turns a cell into a federation: with the given data, or a real federation's sites."""
    if nodes is None:
        from fedelmy_launcher.experiments.cells import prepare_cell
        from fedelmy_launcher.experiments.datasets import parse_given

        given = parse_given(data)
        return lambda cell: prepare_cell(cell, given)
    from fedelmy_launcher.experiments.on_nodes import check_columns, prepare_on_nodes
    from fedelmy_launcher.plans.compiler import load_federation

    if data:
        message = "--data is for simulation; real nodes have their own"
        raise ConfigError("E-CONFIG-VALUE", message, hint="Omit --data or --nodes.")
    check_columns(cells)
    federation = load_federation(nodes)
    return lambda cell: prepare_on_nodes(cell, federation)


@contextmanager
def _simulated(
    left: list[Prepared], jobs: int | None, code: tuple[str, ...], weights: Path
) -> Iterator[Iterable[News]]:
    from fedelmy_launcher.experiments.session import usual_jobs
    from fedelmy_launcher.experiments.worker_pool import WorkerPool

    threads = max(prepared.federation.recipe.training.threads for prepared in left)
    with WorkerPool(left, jobs or usual_jobs(threads), code, weights) as pool:
        yield pool.news()


@contextmanager
def _on_nodes(left: list[Prepared], identity: Identity | None) -> Iterator[Iterable[News]]:
    from fedelmy_launcher.experiments.on_nodes import on_nodes

    yield on_nodes(left, identity)


def _compute(
    session: Session,
    left: list[Prepared],
    results: Results,
    computed: AbstractContextManager[Iterable[News]],
    *,
    as_json: bool,
) -> list[FedelmyError]:
    from fedelmy_launcher.experiments.display import Pace, open_experiment_screen
    from fedelmy_launcher.experiments.session import Work

    pace = Pace({prepared.key: Work.of(prepared).epochs for prepared in left})
    measure = session.outcome.experiment.measure
    with open_experiment_screen(pace, measure, as_json=as_json) as screen, computed as news:
        return session.follow(news, results, screen)


def _conclude(session: Session, written: list[Path], *, as_json: bool) -> None:
    from fedelmy_launcher.experiments.result_table import text_table

    if as_json:
        emit_json(session.outcome.encoded() | {"files": [str(path) for path in written]})
        return
    click.echo()
    click.echo(text_table(session.outcome, shutil.get_terminal_size((100, 24)).columns))
    click.echo()
    click.echo(f"written: {', '.join(str(path) for path in written)}")
