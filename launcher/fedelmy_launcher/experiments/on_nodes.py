"""Compute cells as runs on real nodes, one after another, with the sites of a federation file.

A cell's run is named after its key: a restarted command finds it again.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

from fedelmy_launcher.control.approvals import await_approvals, ignore_news
from fedelmy_launcher.control.sites import Sites
from fedelmy_launcher.control.start_run import prepare_run, start_run
from fedelmy_launcher.experiments.cell_metrics import Measures
from fedelmy_launcher.experiments.cells import Prepared, federation_tables
from fedelmy_launcher.experiments.datasets import datasets
from fedelmy_launcher.experiments.grid import Cell, merged, unfolded
from fedelmy_launcher.experiments.worker_pool import Begun, Epoch, Finished, News
from fedelmy_launcher.plans.compiler import compile_plan, federation_from
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_launcher.view.terminal.follow import follow_run
from fedelmy_node import __version__
from fedelmy_node.config.decode import canonical_json, encode
from fedelmy_node.domain.errors import ConfigError, FedelmyError, InternalError
from fedelmy_node.domain.events import Event, EventKind
from fedelmy_node.domain.federation import Federation
from fedelmy_node.domain.names import run_id
from fedelmy_node.identity.keystore import Identity

logger = logging.getLogger(__name__)

_DATA: Final = "the sites' own"
_NOT_CONTROLLED: Final = (
    "the columns divide the data differently, but real nodes use their own data"
)


def check_columns(cells: Sequence[Cell]) -> None:
    """Refuse cells that differ only in [sites]: on real nodes they would be the same run."""
    if len({canonical_json(encode(cell.settings.get("sites", {}))) for cell in cells}) > 1:
        hint = "Choose one of them with --column."
        raise ConfigError("E-CONFIG-VALUE", _NOT_CONTROLLED, hint=hint)


def prepare_on_nodes(cell: Cell, nodes: Federation) -> Prepared:
    """The cell's settings with the sites and the task of a real federation."""
    settings = dict(cell.settings)
    sites = settings.pop("sites", {})
    if isinstance(sites, Mapping) and sites.get("baseline", "none") != "none":
        hint = "Compute this row without --nodes, or choose others with --only."
        message = "a baseline needs the data of all sites in one place, so it is only simulated"
        raise ConfigError("E-CONFIG-VALUE", message, hint=hint)
    wanted = str(sites.get("data", "")) if isinstance(sites, Mapping) else ""
    defaults = unfolded(datasets()[wanted].settings) if wanted in datasets() else {}
    for name in ("sites", "task"):
        defaults.pop(name, None)
    tables = federation_tables(merged(defaults, settings), cell.seed)
    tables = merged({"federation": {"deliver": "all"}}, tables)
    tables["federation"]["name"] = nodes.name
    tables |= {"task": encode(nodes.recipe.task), "sites": encode(nodes.members)}
    federation_from(tables)
    key = hashlib.sha256(canonical_json(tables)).hexdigest()[:20]
    return Prepared(cell=cell, key=key, tables=tables, parts={}, data=_DATA, synthetic=False)


def on_nodes(cells: Sequence[Prepared], identity: Identity | None) -> Iterator[News]:
    """Follow each cell's run to its end; a run continues if the iteration stops."""
    for prepared in cells:
        following = _Following(prepared, identity)
        following.start()
        one: News = Begun(prepared)
        yield one
        while not isinstance(one, Finished):
            one = following.news.get()
            yield one


class _Following(threading.Thread):
    """A thread that follows one run and reports its progress."""

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
            logger.exception("following a run failed")
            message = f"following a run failed: {type(error).__name__}"
            fault = InternalError("E-INTERNAL", message)
            self.news.put(Finished(self._prepared, error=fault))

    def _follow(self) -> dict[str, Any]:
        federation = self._prepared.federation
        plan = compile_plan(federation, run_id(f"{federation.name}-{self._prepared.key}"))
        progress = RunProgress(plan)
        measures = Measures(progress)
        with Sites(federation, self._identity) as sites:
            reports = prepare_run(sites, plan)
            await_approvals(sites, plan.run, reports, ignore_news)
            start_run(sites, plan.run, reports)
            follow_run(sites, progress, _Listener(measures, self._prepared, self.news))
        return {**measures.result(), "versions": {"fedelmy": __version__}}


class _Listener:
    """A screen that shows nothing and collects the numbers."""

    def __init__(
        self, measures: Measures, prepared: Prepared, news: queue.SimpleQueue[News]
    ) -> None:
        self._measures = measures
        self._prepared = prepared
        self._news = news

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def alert(self, text: str) -> None:
        pass

    def event(self, event: Event) -> None:
        self._measures.add(event)
        if event.kind == EventKind.EPOCH and event.step is not None:
            self._news.put(Epoch(self._prepared, event.step))
