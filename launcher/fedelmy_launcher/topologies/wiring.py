"""What a topology makes: the steps that train and merge, and whose outputs are the result.

Steps of a kind are numbered so that every input has a lower number than what needs it, or is a train step and has the
same number as the merge: whoever hears of steps one by one can put them in order by their names alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.domain.plan import Step, StepKind
from fedelmy_node.errors import ConfigError

__all__ = ["Wiring", "train", "merge", "in_a_row", "check_rounds"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wiring:
    """The training of a run as a graph."""

    steps: tuple[Step, ...]
    """Those that train or merge, inputs before outputs."""
    results: tuple[StepId, ...]
    """Whose outputs are the result: several where several sites compute the same."""

    def ending_with(self, result: StepId) -> Wiring:
        """The same for one result alone, without the steps that nothing needs any more."""
        by_id = {step.id: step for step in self.steps}
        needed, looking = {result}, [result]
        while looking:
            new = set(by_id[looking.pop()].needs) - needed
            needed |= new
            looking += new
        return Wiring(steps=tuple(step for step in self.steps if step.id in needed), results=(result,))


def train(number: int, site: SiteName, visit: int, needs: Sequence[StepId] = ()) -> Step:
    """The `visit`-th time that a run trains at a site; without needs it begins with a new model."""
    return Step(
        id=StepId(f"train.{number}@{site}"), site=site, kind=StepKind.TRAIN, visit=visit, needs=tuple(needs)
    )  # fmt: skip


def merge(number: int, site: SiteName, needs: Sequence[StepId]) -> Step:
    """A site averages the outputs of these steps, in this order."""
    return Step(id=StepId(f"merge.{number}@{site}"), site=site, kind=StepKind.MERGE, visit=0, needs=tuple(needs))


def in_a_row(sites: Sequence[SiteName]) -> tuple[Step, ...]:
    """These sites train one after the other, each on the output before it; one may come several times."""
    visits: Counter[SiteName] = Counter()
    steps: list[Step] = []
    for number, site in enumerate(sites, start=1):
        visits[site] += 1
        steps.append(train(number, site, visits[site], [step.id for step in steps[-1:]]))
    return tuple(steps)


def check_rounds(rounds: int) -> None:
    if not 1 <= rounds <= 1000:
        raise ConfigError("E-CONFIG-VALUE", "rounds must be 1 to 1000")
