"""A process that simulates cells; reads jobs and writes progress and results as JSON lines.

It exits as soon as its standard input closes: the parent process is gone then.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from fedelmy_node.domain.federation import Federation


def main() -> None:
    # Keep other output, for example of libraries, out of the JSON lines.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    from fedelmy_node.training.data.source_cache import cached_sources

    work: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(work,), daemon=True).start()
    with cached_sources():
        while True:
            _answer(json.loads(work.get()), out)


def _listen(work: queue.Queue[str]) -> None:
    for line in sys.stdin:
        work.put(line)
    os._exit(0)


def _answer(job: Mapping[str, Any], out: TextIO) -> None:
    from fedelmy_node.domain.errors import FedelmyError, InternalError

    def reply(message: Mapping[str, Any]) -> None:
        out.write(json.dumps({"key": job["key"], **message}) + "\n")
        out.flush()

    try:
        reply({"result": _simulate(job, reply)})
    except FedelmyError as error:
        reply({"error": {"code": error.code, "message": error.whole, "hint": error.hint}})
    except Exception as error:  # noqa: BLE001 - the process boundary
        import traceback

        traceback.print_exc()
        fault = InternalError("E-INTERNAL", f"{type(error).__name__}: {error}")
        reply({"error": {"code": fault.code, "message": fault.message, "hint": fault.hint}})


def _simulate(job: Mapping[str, Any], reply: Any) -> dict[str, Any]:
    from fedelmy_launcher.experiments.cell_metrics import Measures
    from fedelmy_launcher.plans.compiler import compile_plan, federation_from
    from fedelmy_launcher.simulate.simulation import Simulation, data_of
    from fedelmy_launcher.view.progress import RunProgress
    from fedelmy_node.domain.events import Event, EventKind
    from fedelmy_node.domain.names import run_id
    from fedelmy_node.training.torch_runtime import versions

    federation = federation_from(job["tables"])
    if job["alone"]:
        return _alone(job, federation, reply)
    plan = compile_plan(federation, run_id(f"experiment-{job['key']}"))
    progress = RunProgress(plan)
    measures = Measures(progress)

    def take(event: Event) -> None:
        progress.add(event)
        measures.add(event)
        if event.kind == EventKind.EPOCH:
            reply({"step": event.step})

    with tempfile.TemporaryDirectory(prefix="fedelmy-") as directory:
        weights = job["weights"] and Path(job["weights"])
        Simulation(
            plan, data_of(federation), Path(directory), take, code=job["code"], weights=weights
        ).run()
    return {**measures.result(), "versions": versions()}


def _alone(job: Mapping[str, Any], federation: Federation, reply: Any) -> dict[str, Any]:
    """The site whose own model is best on the test data: an upper bound for training alone."""
    from fedelmy_launcher.simulate.baselines import every_site_alone
    from fedelmy_node.domain.events import Event, EventKind
    from fedelmy_node.domain.names import run_id
    from fedelmy_node.training.torch_runtime import versions

    def take(event: Event) -> None:
        if event.kind == EventKind.EPOCH:
            reply({"step": event.step})

    began, weights = time.monotonic(), job["weights"] and Path(job["weights"])
    with tempfile.TemporaryDirectory(prefix="fedelmy-") as directory:
        run = run_id(f"experiment-{job['key']}")
        found = every_site_alone(
            federation, run, Path(directory), take, code=job["code"], weights=weights
        )
    best = max(found.values(), key=lambda own: own.accuracy or 0.0)
    return {
        "accuracy": best.accuracy,
        "balanced_accuracy": best.balanced_accuracy,
        "samples": best.samples,
        **dict.fromkeys(("bytes", "bytes_delivered", "bundle_bytes"), 0),
        "sha256": "",
        "seconds": round(time.monotonic() - began, 1),
        "subset": False,
        "pool_distances": None,
        "versions": versions(),
    }


if __name__ == "__main__":
    main()
