"""The moments of a run at which a process may be killed, each found by looking from outside.

A moment is reached, and stays, because a gate holds bytes or a trainer is stopped (SIGSTOP), or is
a stretch of time in which nothing new is journaled; then `reach` returns. The chain is north ->
south, and the result goes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.support.gates import Gate
from tests.e2e.support.witness import Seen, Trainer, Witness, wait_until

__all__ = ["Scene", "Moment", "MissedError", "MOMENTS", "POOL_SIZE"]

POOL_SIZE = 2
TRAIN_NORTH, TRAIN_SOUTH, EVALUATE_SOUTH = "train.1@north", "train.2@south", "evaluate.1@south"
_HELD_SHARE = 0.6
"""Of a bundle of two blocks and a bit: the first is verified, the second is under way."""

_WORD_SECONDS = 0.3
"""Within this time a daemon has journaled what its trainer said before it was stopped."""


class MissedError(Exception):
    """The moment was over before it was noticed."""


@dataclass(kw_only=True, slots=True)
class Scene:
    """One run, and what can be held of it."""

    witnesses: Mapping[str, Witness]
    gates: Mapping[str, Gate]
    """In front of each site, for what other sites send; the launcher does not pass them."""
    bundle_bytes: int
    alive: Callable[[], object]
    """Raises if nothing can be waited for any more."""
    stopped: list[Trainer] = field(default_factory=list)

    def wait(self, site: str, kind: str, step: str = "", **data: Any) -> Seen:
        def look() -> Seen | None:
            self.alive()
            return self.witnesses[site].find(kind, step, **data)

        seen: Seen = wait_until(look, f"event {kind} {data} of {site}")
        return seen

    def wait_held(self, site: str) -> None:
        def look() -> bool:
            self.alive()
            return self.gates[site].held.is_set()

        wait_until(look, f"held bytes towards {site}")

    def not_yet(self, site: str, kind: str, step: str = "", **data: Any) -> None:
        """Raise if it is later than it should be."""
        if self.witnesses[site].find(kind, step, **data):
            raise MissedError(f"{kind} {data} of {site} came first")

    def stop_trainer(self, site: str, step: str) -> None:
        directory = self.witnesses[site].step_directory(step)
        for trainer in self.witnesses[site].trainers():
            if trainer.directory == directory:
                trainer.stop()
                self.stopped.append(trainer)

    def let_go(self) -> None:
        """Nothing is held any more."""
        for gate in self.gates.values():
            gate.release()
        while self.stopped:
            self.stopped.pop().go_on()


@dataclass(frozen=True, slots=True)
class Moment:
    """When; and at which sites to kill: the daemon of the first one, the trainer of the first that
    has one.
    """

    name: str
    reach: Callable[[Scene], None]
    sites: tuple[str, ...]


def _warm_up(scene: Scene) -> None:
    _inside_epoch(scene, "north", TRAIN_NORTH, member=0)


def _mid_epoch(scene: Scene) -> None:
    _inside_epoch(scene, "south", TRAIN_SOUTH, member=1)


def _inside_epoch(scene: Scene, site: str, step: str, member: int) -> None:
    """In the middle of the third epoch: half an epoch after the second, if the third takes as long
    as that.
    """
    first = scene.wait(site, "epoch", step, member=member, epoch=1)
    second = scene.wait(site, "epoch", step, member=member, epoch=2)
    time.sleep(max(0.0, second.time + (second.time - first.time) / 2 - time.time()))
    scene.not_yet(site, "epoch", step, member=member, epoch=3)


def _between_members(scene: Scene) -> None:
    scene.wait("south", "member", TRAIN_SOUTH, member=1)
    scene.not_yet("south", "epoch", TRAIN_SOUTH, member=2)


def _averaging(scene: Scene) -> None:
    """The mean is being written: its file is there under its temporary name."""
    scene.wait("south", "member", TRAIN_SOUTH, member=POOL_SIZE)
    directory = scene.witnesses["south"].step_directory(TRAIN_SOUTH)
    partial, output = directory / ".output.safetensors.partial", directory / "output.safetensors"
    wait_until(lambda: partial.exists() or output.exists(), "file of the mean", every=0.0001)
    scene.stop_trainer("south", TRAIN_SOUTH)
    if output.exists() or not partial.exists():
        raise MissedError("the mean was written before the trainer could be stopped")


def _before_begin(scene: Scene) -> None:
    """The bundle is journaled at the sender, whose first connection to hand it over gets no byte
    through.
    """
    scene.wait("north", "member", TRAIN_NORTH, member=POOL_SIZE)
    scene.gates["south"].hold_bytes(at=0)
    scene.wait("north", "step", TRAIN_NORTH, state="done")
    scene.wait_held("south")
    scene.not_yet("south", "received")


def _mid_transfer(scene: Scene) -> None:
    scene.gates["south"].hold_bytes(at=int(_HELD_SHARE * scene.bundle_bytes))
    scene.wait_held("south")
    scene.not_yet("south", "received")


def _after_receipt(scene: Scene) -> None:
    """The receiver has journaled the bundle; its receipt is on its way and does not arrive."""
    scene.gates["south"].hold_answers(after=scene.bundle_bytes)
    scene.wait("south", "received", TRAIN_SOUTH)
    scene.not_yet("north", "sent", TRAIN_NORTH)


def _evaluating(scene: Scene) -> None:
    """The trainer has loaded and is stopped; its step is running, or will be once its input is
    there.
    """
    scene.wait("south", "ready", EVALUATE_SOUTH)
    scene.stop_trainer("south", EVALUATE_SOUTH)
    scene.wait("south", "step", EVALUATE_SOUTH, state="running")
    time.sleep(_WORD_SECONDS)
    scene.not_yet("south", "step", EVALUATE_SOUTH, state="done")


def _delivering(scene: Scene) -> None:
    scene.gates["north"].hold_bytes(at=int(_HELD_SHARE * scene.bundle_bytes))
    scene.wait_held("north")
    scene.not_yet("north", "received")


MOMENTS = {
    moment.name: moment
    for moment in (
        Moment("warm-up", _warm_up, ("north",)),
        Moment("mid-epoch", _mid_epoch, ("south",)),
        Moment("between-members", _between_members, ("south",)),
        Moment("averaging", _averaging, ("south",)),
        Moment("before-begin", _before_begin, ("north", "south")),
        Moment("mid-transfer-sender", _mid_transfer, ("north",)),
        Moment("mid-transfer-receiver", _mid_transfer, ("south",)),
        Moment("after-receipt", _after_receipt, ("south", "north")),
        Moment("evaluating", _evaluating, ("south",)),
        Moment("delivering", _delivering, ("south", "north")),
    )
}
