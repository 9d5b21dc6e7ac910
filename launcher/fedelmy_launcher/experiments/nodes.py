"""Cells as runs of real nodes, one after another: their sites, addresses and task are a federation file's.

A cell's run is named after its key: a command that was killed finds it again, running or done.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from fedelmy_launcher.approvals import await_approvals, nobody
from fedelmy_launcher.control import Sites, prepare_run, start_run
from fedelmy_launcher.experiments.datasets import datasets
from fedelmy_launcher.experiments.federations import Prepared, federation_tables
from fedelmy_launcher.experiments.grid import Cell
from fedelmy_launcher.experiments.measures import Measures
from fedelmy_launcher.experiments.news import Begun, Epoch, Finished, News
from fedelmy_launcher.experiments.settings import merged, unfolded
from fedelmy_launcher.federation_file import federation_from
from fedelmy_launcher.following import follow_run
from fedelmy_launcher.plans import compile_plan
from fedelmy_launcher.progress import RunProgress
from fedelmy_node import __version__
from fedelmy_node.config.decode import canonical_json, encode
from fedelmy_node.domain.events import Event, EventKind
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import run_id
from fedelmy_node.errors import ConfigError, FedelmyError, InternalError
from fedelmy_node.identity.keystore import Identity

__all__ = ["check_columns", "prepare_on_nodes", "on_nodes"]

logger = logging.getLogger(__name__)

_DATA: Final = "the sites' own"


def check_columns(cells: Sequence[Cell]) -> None:
    """Nobody cuts the data of real sites: cells that differ in [sites] would be the same run."""
    if len({canonical_json(encode(cell.settings.get("sites", {}))) for cell in cells}) > 1:
        raise ConfigError(
            "E-CONFIG-VALUE",
            "the columns differ in how the data are cut into sites, and the data of real nodes are their own",
            hint="Choose one of them with --column.",
        )


def prepare_on_nodes(cell: Cell, nodes: Federation) -> Prepared:
    """The cell's training with the federation's sites and task."""
    settings = dict(cell.settings)
    sites = settings.pop("sites", {})
    wanted = str(sites.get("data", "")) if isinstance(sites, Mapping) else ""
    brought = unfolded(datasets()[wanted].settings) if wanted in datasets() else {}
    tables = federation_tables(
        merged({name: table for name, table in brought.items() if name not in ("sites", "task")}, settings), cell.seed
    )
    tables = merged({"federation": {"deliver": "all"}}, tables)
    tables["federation"]["name"] = nodes.name
    tables |= {"task": encode(nodes.recipe.task), "sites": encode(nodes.members)}
    federation_from(tables)
    key = hashlib.sha256(canonical_json(tables)).hexdigest()[:20]
    return Prepared(cell=cell, key=key, tables=tables, parts={}, data=_DATA, synthetic=False)


def on_nodes(cells: Sequence[Prepared], identity: Identity | None) -> Iterator[News]:
    """Every cell's run, followed to its end; whoever stops listening leaves it running."""
    for prepared in cells:
        following = _Following(prepared, identity)
        following.start()
        one: News = Begun(prepared)
        yield one
        while not isinstance(one, Finished):
            one = following.news.get()
            yield one


class _Following(threading.Thread):
    """One run, followed on a thread of its own: what it tells is wanted while it goes on."""

    def __init__(self, prepared: Prepared, identity: Identity | None) -> None:
        super().__init__(daemon=True)
        self.news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._prepared = prepared
        self._identity = identity

    def run(self) -> None:
        try:
            self.news.put(Finished(self._prepared, result=self._follow()))
        except FedelmyError as error:
            self.news.put(Finished(self._prepared, error=error))
        except Exception as error:
            logger.exception("a run could not be followed")
            fault = InternalError("E-INTERNAL", f"a run could not be followed: {type(error).__name__}")
            self.news.put(Finished(self._prepared, error=fault))

    def _follow(self) -> dict[str, Any]:
        federation = self._prepared.federation
        plan = compile_plan(federation, run_id(f"{federation.name}-{self._prepared.key}"))
        progress = RunProgress(plan)
        measures = Measures(progress)
        with Sites(federation, self._identity) as sites:
            reports = prepare_run(sites, plan)
            await_approvals(sites, plan.run, reports, nobody)
            start_run(sites, plan.run, reports)
            follow_run(sites, progress, _Listener(measures, self._prepared, self.news))
        return {**measures.result(), "versions": {"fedelmy": __version__}}


class _Listener:
    """A screen that shows nothing and takes the numbers."""

    def __init__(self, measures: Measures, prepared: Prepared, news: queue.SimpleQueue[News]) -> None:
        self._measures = measures
        self._prepared = prepared
        self._news = news

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def alert(self, text: str) -> None:
        pass

    def event(self, event: Event) -> None:
        self._measures.add(event)
        if event.kind == EventKind.EPOCH and event.step is not None:
            self._news.put(Epoch(self._prepared, event.step))
