"""A process that simulates cells: one JSON object per line in, progress and results as lines out.

It ends with its standard input, whatever it is doing: whoever gave it work is gone then.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

__all__ = ["main"]


def main() -> None:
    # What is printed on the way, by whomever, must not stand between the lines.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    from fedelmy_node.training.data.kept import kept_sources

    work: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(work,), daemon=True).start()
    with kept_sources():
        while True:
            _answer(json.loads(work.get()), out)


def _listen(work: queue.Queue[str]) -> None:
    for line in sys.stdin:
        work.put(line)
    os._exit(0)


def _answer(asked: Mapping[str, Any], out: TextIO) -> None:
    from fedelmy_node.errors import FedelmyError, InternalError

    def tell(message: Mapping[str, Any]) -> None:
        out.write(json.dumps({"key": asked["key"], **message}) + "\n")
        out.flush()

    try:
        tell({"result": _simulate(asked, tell)})
    except FedelmyError as error:
        tell({"error": {"code": error.code, "message": error.whole, "hint": error.hint}})
    except Exception as error:  # noqa: BLE001 - the process boundary
        import traceback

        traceback.print_exc()
        fault = InternalError("E-INTERNAL", f"{type(error).__name__}: {error}")
        tell({"error": {"code": fault.code, "message": fault.message, "hint": fault.hint}})


def _simulate(asked: Mapping[str, Any], tell: Any) -> dict[str, Any]:
    from fedelmy_launcher.experiments.measures import Measures
    from fedelmy_launcher.federation_file import federation_from
    from fedelmy_launcher.plans import compile_plan
    from fedelmy_launcher.progress import RunProgress
    from fedelmy_launcher.simulate import Simulation, data_of
    from fedelmy_node.domain.events import Event, EventKind
    from fedelmy_node.domain.names import run_id
    from fedelmy_node.training.versions import versions

    federation = federation_from(asked["tables"])
    plan = compile_plan(federation, run_id(f"experiment-{asked['key']}"))
    progress = RunProgress(plan)
    measures = Measures(progress)

    def take(event: Event) -> None:
        progress.add(event)
        measures.add(event)
        if event.kind == EventKind.EPOCH:
            tell({"step": event.step})

    with tempfile.TemporaryDirectory(prefix="fedelmy-") as directory:
        Simulation(plan, data_of(federation), Path(directory), take, code=asked["code"]).run()
    return {**measures.result(), "versions": versions()}


if __name__ == "__main__":
    main()
