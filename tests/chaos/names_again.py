"""An operator who uses a run's name again: after a refusal, after a cancel, after a launcher that
died half-way.
"""

from __future__ import annotations

from collections.abc import Callable

from fedelmy_launcher.control.start_run import _plan_id
from fedelmy_node.domain.events import RunState
from fedelmy_node.run.run_report import report_of
from fedelmy_node.store.records import RunRecord
from tests.chaos.world import World

__all__ = ["Operator"]


class Operator:
    """What `fedelmy-launch run --run NAME` and `cancel` do, one call at a time; `between` is what
    happens meanwhile.
    """

    def __init__(self, world: World, between: Callable[[], None] = lambda: None) -> None:
        self._world = world
        self._between = between
        self.made = -1
        """The number of the newest plan."""
        self.cancelled: dict[int, set[str]] = {}
        """Where an operator's cancel of a plan was said."""
        self._ended: set[int] = set()
        """The plans that were withdrawn or cancelled."""

    def prepare(self, refuses: str = "", gives_up_at: str = "") -> int | None:
        """Bring every site its part of a plan; its number if all have it, otherwise it was
        withdrawn.

        At the site `gives_up_at` the launcher dies, so nothing is withdrawn.
        """
        world = self._world
        if len(world.daemons) < len(world.sites):
            return None
        records = {name: site.record for name, site in world.sites.items()}
        number = self._number([record for record in records.values() if record is not None])
        is_new = all(record is None or record.state in _AGAIN for record in records.values())
        accepted = []
        for name in world.choices.shuffled(list(world.sites)):
            self._between()
            if name == gives_up_at:
                return None
            up = world.sites[name].daemon is not None
            if name != refuses and up and world.prepare(name, number):
                accepted.append(name)
        if len(accepted) == len(world.sites):
            return number
        for name in accepted if is_new else ():
            self._between()
            if world.sites[name].daemon is not None:
                world.withdraw(name, number)
        self._ended |= {number} if is_new else set()
        return None

    def cancel(self) -> None:
        """Wherever anybody answers: the plan that each site has."""
        for name, site in self._world.sites.items():
            self._between()
            if site.daemon is not None and site.record is not None:
                number = int(site.record.slice.plan_id, 16)
                self.cancelled.setdefault(number, set()).add(name)
                self._ended.add(number)
                self._world.cancel(name)

    @property
    def left_behind(self) -> bool:
        """Whether a site died before it heard of the end of a plan, and goes on with it.

        The name is taken there until the operator cancels that plan, too.
        """
        records = (site.record for site in self._world.sites.values())
        return any(
            int(record.slice.plan_id, 16) in self._ended and record.state not in _AGAIN
            for record in records
            if record is not None
        )

    def _number(self, records: list[RunRecord]) -> int:
        """As the launcher chooses: the plan that is alive somewhere, otherwise a new one."""
        chosen = _plan_id(report_of(record, 0, ()) for record in records)
        alive = {record.slice.plan_id for record in records if record.state not in _AGAIN}
        self.made += chosen not in alive
        return int(chosen, 16) if chosen in alive else self.made


_AGAIN = (RunState.CANCELLED, RunState.EXPIRED)
