"""FedAvg: plain training of one model per site; merges weigh models by samples.

On a mesh of several rounds this is the usual FedAvg; on a chain, without merges, it equals FedSeq.
Counts add up along a chain: the model at the end of a group of sites has the weight of all sites
that trained it. A merge resets the count: the next round is weighted by what it trains itself, or
all weights would become equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fedelmy_node.domain.artifact import SAMPLES, SEEN_GROUP
from fedelmy_node.domain.errors import BundleError
from fedelmy_node.domain.step_traits import BUILT_IN, MERGE, MODEL, TRAIN
from fedelmy_node.training.operations import SAMPLE_COUNTS, Operation, Takes
from fedelmy_node.training.strategies import fedseq
from fedelmy_node.training.strategies.fedseq import Settings, effort

if TYPE_CHECKING:
    from fedelmy_node.training.context import Context, Outputs, Specs
    from fedelmy_node.training.operations import Groups

__all__ = ["OPERATIONS", "Settings"]


def spec(specs: Specs) -> Groups:
    import torch

    return {MODEL: specs.model, SEEN_GROUP: {SAMPLES: specs.tensor(1, dtype=torch.int64)}}


def train(context: Context, settings: Settings) -> Outputs:
    """As FedSeq; count this site's samples, and those of the sites before it since a merge."""
    trained = fedseq.train(context, settings)
    return _counted(trained, sum(_counts(context)) + context.samples)


def merge(context: Context, settings: Settings) -> Outputs:
    """Average the models, weighted by their counts."""
    from fedelmy_node.training.context import Outputs

    counts = _counts(context)
    if any(counts) and not all(counts):
        message = "one of the models to be merged has no sample count"
        error = BundleError("E-BUNDLE-FORMAT", message)
        error.inputs = tuple(position for position, count in enumerate(counts) if not count)
        raise error
    mean = context.mean(context.received, counts if all(counts) else None)
    return _counted(Outputs(model=mean), 0)


def _counts(context: Context) -> list[int]:
    from fedelmy_node.training.context import one_number

    return [one_number(given, SEEN_GROUP, SAMPLES) for given in context.role(MODEL)]


def _counted(outputs: Outputs, samples: int) -> Outputs:
    import torch

    from fedelmy_node.training.context import Outputs

    seen = {SAMPLES: torch.tensor([samples], dtype=torch.int64)}
    return Outputs(model=outputs.model, groups={SEEN_GROUP: seen})


OPERATIONS: Final = {
    TRAIN: Operation(run=train, effort=effort, output=spec, discloses=(SAMPLE_COUNTS,)),
    MERGE: Operation(
        run=merge,
        traits=BUILT_IN[MERGE],
        inputs={MODEL: Takes(least=1, most=None)},
        output=spec,
        discloses=(SAMPLE_COUNTS,),
    ),
}
