"""What can be seen of a site from outside while its daemon lives, dies and lives again: its
journal, its processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedelmy_node.domain.names import RunId, StepId
from fedelmy_node.store.state_directory import Layout
from tests.e2e.support.testbed import Site

_LOOK_SECONDS = 0.005
_SLICE_SECONDS = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One event of a site's journal."""

    seq: int
    time: float
    step: str
    kind: str
    data: Mapping[str, Any]

    def has(self, kind: str, **data: Any) -> bool:
        return self.kind == kind and all(self.data.get(key) == value for key, value in data.items())


@dataclass(frozen=True, slots=True)
class Trainer:
    """A trainer process, and the directory of the step that it was started for."""

    pid: int
    directory: Path

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def is_alive(self) -> bool:
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False
        return status[0] != "Z"

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Witness:
    """One run at one site."""

    def __init__(self, site: Site, run: str) -> None:
        self.site, self.run = site, run
        self._layout = Layout(site.state)
        self.after = 0
        """Only events after this one are waited for."""

    def events(self, after: int = 0, kind: str | None = None) -> list[Seen]:
        rows = self._ask(
            "SELECT seq, time, step, kind, data FROM events"
            " WHERE run = ?1 AND seq > ?2 AND (?3 IS NULL OR kind = ?3) ORDER BY seq",
            self.run,
            after,
            kind,
        )
        return [
            Seen(seq=r[0], time=r[1], step=r[2], kind=r[3], data=json.loads(r[4])) for r in rows
        ]

    def state(self) -> str:
        """Of the run here; empty before it is known."""
        rows = self._ask("SELECT state FROM runs WHERE run = ?", self.run)
        return str(rows[0][0]) if rows else ""

    def count(self) -> int:
        """How many events there are."""
        rows = self._ask("SELECT COUNT(*) FROM events WHERE run = ?", self.run)
        return int(rows[0][0]) if rows else 0

    def result(self) -> str:
        """The sha256 of what was delivered here, as journaled; empty before that."""
        rows = self._ask(
            "SELECT sha256 FROM steps WHERE run = ? AND step LIKE 'deliver%'", self.run
        )
        return str(rows[0][0]) if rows else ""

    def open_ends(self) -> list[str]:
        """Steps and edges that are not over here; an edge from here is over when its receiver has
        said so.
        """
        steps = self._ask("SELECT step, state FROM steps WHERE run = ?", self.run)
        edges = self._ask("SELECT edge, state FROM edges WHERE run = ?", self.run)
        found = [f"{step} ({state})" for step, state in steps if state not in ("done", "skipped")]
        for edge, state in edges:
            sender, receiver = (end.rpartition("@")[2] for end in edge.split(">"))
            if sender == self.site.name and state == "done":
                found.append(f"the word of {receiver} that {edge} is settled")
            elif state in ("waiting", "moving"):
                found.append(f"{edge} ({state})")
        return found

    def forget(self) -> None:
        """What was seen so far is not waited for any more."""
        self.after = max((event.seq for event in self.events()), default=0)

    def find(self, kind: str, step: str = "", **data: Any) -> Seen | None:
        for event in self.events(self.after, kind):
            if event.step.startswith(step) and event.has(kind, **data):
                return event
        return None

    def step_directory(self, step: str) -> Path:
        return self._layout.step(RunId(self.run), StepId(step))

    def trainers(self) -> list[Trainer]:
        """The trainers of the site's daemon, of whatever step."""
        assert self.site.process is not None
        return trainers_of(self.site.process.pid)

    @contextmanager
    def held(self, step: str, *, begun: bool = True) -> Iterator[Trainer]:
        """Hold the trainer of a step after its first epoch or so, until the block ends.

        It runs in short slices until there is a checkpoint, which it writes itself: so it does not
        get to its end before it is stopped, however busy this machine is. Without `begun` it is
        held as soon as it exists, which is while it imports torch.
        """
        directory = self.step_directory(step)
        checkpoints = directory / "checkpoints"

        def find() -> Trainer | None:
            return next((one for one in self.trainers() if one.directory == directory), None)

        trainer: Trainer = wait_until(find, f"trainer of {step}")
        trainer.stop()

        def has_checkpoint() -> bool:
            nonlocal trainer
            if not begun or any(checkpoints.glob("*.json")):
                return True
            if not trainer.is_alive():  # it was started early, and another one has taken its place
                trainer = wait_until(find, f"another trainer of {step}")
            trainer.go_on()
            time.sleep(_SLICE_SECONDS)
            trainer.stop()
            return False

        try:
            wait_until(has_checkpoint, f"checkpoint of {step}")
            yield trainer
        finally:
            trainer.go_on()

    def _ask(self, question: str, *arguments: object) -> list[Any]:
        """Read-only, so that nothing here repairs, checkpoints or locks what the daemon owns."""
        try:
            with contextlib.closing(
                sqlite3.connect(f"file:{self._layout.journal}?mode=ro", uri=True, timeout=5)
            ) as journal:
                return journal.execute(question, arguments).fetchall()
        except sqlite3.OperationalError:
            return []  # not made yet, or its daemon is just opening it: whoever waits looks again


def trainers_of(daemon: int) -> list[Trainer]:
    """Children of a daemon that were started to train; the lock that each inherits tells for which
    step.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            status = (process / "stat").read_text().rpartition(")")[2].split()
            if int(status[1]) != daemon or status[0] == "Z":
                continue
            if b"fedelmy_node.training.trainer" not in (process / "cmdline").read_bytes():
                continue
            files = [descriptor.readlink() for descriptor in (process / "fd").iterdir()]
        except OSError:
            continue  # it has ended meanwhile
        found += [
            Trainer(int(process.name), file.parent) for file in files if file.name == "trainer.lock"
        ]
    return found


def wait_until(
    look: Callable[[], Any], what: str, seconds: float = 600.0, every: float = _LOOK_SECONDS
) -> Any:
    """The first answer of `look` that is not false."""
    deadline = time.monotonic() + seconds
    while not (answer := look()):
        assert time.monotonic() < deadline, f"no {what} within {seconds:g} s"
        time.sleep(every)
    return answer
