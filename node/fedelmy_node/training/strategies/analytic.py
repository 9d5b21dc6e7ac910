"""Ridge regression on the features of a frozen model, from sums that sites add to and hand on.

The result is that of all samples in one place, whatever the partition and the order of the sites
(AFL, CVPR 2025; Fed3R, ICML 2024; FedCGS, AAAI 2025; docs/methods/analytic.md). Where sites are in
a row, the first one hides all sums behind a random mask and takes it off at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from fedelmy_node.domain.errors import BundleError, ConfigError, RunError
from fedelmy_node.domain.federation import Recipe
from fedelmy_node.domain.step_traits import MERGE, MODEL, TRAIN, Traits
from fedelmy_node.training.operations import Operation, Result, Takes
from fedelmy_node.training.strategies import fedseq

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from fedelmy_launcher.plans.topologies.wiring import Wiring
    from fedelmy_node.training.context import Artifact, Context, Outputs, Specs
    from fedelmy_node.training.exact_sums import Sums
    from fedelmy_node.training.operations import Groups

MASK: Final = "mask"
UNMASK: Final = "unmask"
SOLVE: Final = "solve"
FINETUNE: Final = "finetune"
SUMS: Final = "sums"
MAX_WIDTH: Final = 8192
"""Inputs of the head: the sums then have 269 MB."""
GAMMAS: Final = tuple(10 ** (half / 2) for half in range(-8, 11))
"""What `gamma = "auto"` chooses from: 0.0001 to 100,000."""
_MASKED_SITES: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The keys of `[strategy]` in federation.toml."""

    gamma: Literal["auto"] | float = "auto"
    """Ridge penalty; auto: by generalised cross-validation, from the sums alone."""
    random_features: int = 0
    """relu(zR) of so many random directions instead of the features z themselves; 0: off."""
    temperature: float = 0.1
    """Divides the solved scores: predictions stay, probabilities become sharper."""
    masked: bool | None = None
    """Hide the sums behind a random mask; default: where three or more sites are in a row."""
    finetune: bool = False
    """Add a lap in which every site trains the solved model for `[training] epochs`."""

    def __post_init__(self) -> None:
        gamma = 1.0 if self.gamma == "auto" else self.gamma
        _require(0 < gamma <= 1e9, "gamma must be above 0, or auto")
        _require(0 <= self.random_features <= MAX_WIDTH, f"random_features: 0 to {MAX_WIDTH}")
        _require(0 < self.temperature <= 1000, "temperature must be above 0 and at most 1000")


def check(settings: Settings, recipe: Recipe) -> None:
    """Refuse augmentation that would change nothing."""
    message = "augment has no effect without finetune = true: sums use unaugmented images"
    _require(not recipe.training.augment or settings.finetune, message)


def finish(wiring: Wiring, recipe: Recipe, settings: Settings) -> Wiring:
    """Let every site add once, one site solve, and all of them fine-tune if wanted."""
    wiring = wiring.once()
    wiring = wiring.ending_with(wiring.results[0])
    sites = wiring.row
    masked = len(sites) >= _MASKED_SITES if settings.masked is None else settings.masked
    if masked:
        in_a_row = "masked needs at least two sites in a row: topology chain or ring"
        _require(len(sites) > 1, in_a_row)
        mask, wiring = wiring.preceded_by(MASK)
        wiring = wiring.then(UNMASK, sites[0], {mask: MASK})
    else:
        wiring = wiring.then(SOLVE, wiring.site)
    if settings.finetune:
        _require(bool(sites), "finetune needs sites in a row: topology chain or ring")
        begin = sites.index(wiring.site)
        for site in sites[begin:] + sites[:begin]:
            wiring = wiring.then(FINETUNE, site, visit=2)
    return wiring


def make_head(head: nn.Linear, *, settings: Settings, seed: int) -> nn.Module:
    """Clip the head's input, and draw random features of it if wanted."""
    from fedelmy_node.training.models.feature_head import feature_head
    from fedelmy_node.training.seeds import derive

    width = settings.random_features or head.in_features
    _require(width <= MAX_WIDTH, f"the head has {width} inputs; analytic takes up to {MAX_WIDTH}")
    return feature_head(head, settings.random_features, derive(seed, "random features"))


def sums_spec(specs: Specs) -> Groups:
    import torch

    before = [name for name in specs.module if not name.startswith(f"{specs.head}.")]
    if before and specs.recipe.model.weights is None:
        message = f"strategy analytic needs [model] weights for {before[0]!r} and the other tensors"
        hint = "Name a file of weights, or use model linear on vectors."
        raise ConfigError(
            "E-CONFIG-VALUE",
            f"{message} before the head, which must be equal at all sites",
            hint=hint,
        )
    return {
        SUMS: {
            name: specs.tensor(*shape, dtype=torch.int64) for name, shape in _shapes(specs).items()
        }
    }


def _shapes(specs: Specs) -> dict[str, tuple[int, ...]]:
    from fedelmy_node.training import exact_sums
    from fedelmy_node.training.models.feature_head import LINEAR

    inputs = specs.module[f"{specs.head}.{LINEAR}.weight"].shape[1] + 1
    return exact_sums.shapes(inputs, specs.classes)


def mask(context: Context, settings: Settings) -> Outputs:
    """Draw the mask: the sums of no samples, as everybody else will see them."""
    import math

    from fedelmy_node.training import exact_sums

    shapes = _shapes(context.specs)
    stream = context.secret_bytes(8 * sum(map(math.prod, shapes.values())))
    return _sums(exact_sums.mask_of(stream, shapes))


def train(context: Context, settings: Settings) -> Outputs:
    """Add the sums over this site's samples, unless they are in what was received."""
    from fedelmy_node.training import exact_sums
    from fedelmy_node.training.models.feature_head import exact_blocks

    given = next(iter(context.role(MODEL)), None)
    if given is not None and context.site in given.sites:
        return _sums(given.groups[SUMS], samples=0)
    features = context.features()
    head = context.model.module.get_submodule(context.specs.head)
    blocks = exact_blocks(head, features.values)
    sums = exact_sums.sums_of(blocks, features.labels, context.specs.classes)
    if given is not None:
        sums = exact_sums.added(given.groups[SUMS], sums)
    return _sums(sums, samples=len(features.labels))


def merge(context: Context, settings: Settings) -> Outputs:
    """Add what was received; of inputs with the same sites, take one."""
    from fedelmy_node.training import exact_sums

    first, *others = _apart(context.role(MODEL))
    sums: Sums = first.groups[SUMS]
    for other in others:
        sums = exact_sums.added(sums, other.groups[SUMS])
    return _sums(sums)


def _apart(inputs: Sequence[Artifact]) -> list[Artifact]:
    """The inputs without those whose sites are in another one; no site may be in two."""
    taken: list[Artifact] = []
    for given in sorted(inputs, key=lambda each: -len(each.sites)):
        shared = [each for each in taken if given.sites & each.sites]
        if not shared:
            taken.append(given)
        elif not any(given.sites <= each.sites for each in shared):
            twice = min(given.sites & shared[0].sites)
            message = f"two of the sums contain site {twice}, and neither includes the other"
            raise RunError("E-RUN-PLAN", f"{message}: they cannot be added")
    return taken


def solve(context: Context, settings: Settings) -> Outputs:
    """Solve for the head of the initial model."""
    (given,) = context.role(MODEL)
    return _solved(context, settings, given, given.groups[SUMS])


def unmask(context: Context, settings: Settings) -> Outputs:
    """Take the mask off, then solve."""
    from fedelmy_node.training import exact_sums

    (given,), (drawn,) = context.role(MODEL), context.role(MASK)
    if context.site not in given.sites:
        raise RunError("E-RUN-PLAN", "the sums do not begin at this site, so it did not mask them")
    sums = exact_sums.without(given.groups[SUMS], drawn.groups[SUMS])
    return _solved(context, settings, given, sums)


def _solved(context: Context, settings: Settings, given: Artifact, sums: Sums) -> Outputs:
    from fedelmy_node.training import exact_sums
    from fedelmy_node.training.context import Outputs
    from fedelmy_node.training.models.feature_head import LINEAR

    exact_sums.check(sums)
    ridge = exact_sums.Ridge.of(sums)
    gammas = GAMMAS if settings.gamma == "auto" else (settings.gamma,)
    errors = {gamma: ridge.error(gamma) for gamma in gammas}
    gamma = min(gammas, key=lambda each: errors[each])
    solution = ridge.solve(gamma) / settings.temperature
    state, path = context.state_dict(context.initial), f"{context.specs.head}.{LINEAR}"
    state[f"{path}.weight"] = solution[:-1].T.to(state[f"{path}.weight"])
    state[f"{path}.bias"] = solution[-1].to(state[f"{path}.bias"])
    counts = sums[exact_sums.COUNTS].tolist()
    report: dict[str, Any] = {
        "contributors": sorted(given.sites),
        "samples": sum(counts),
        "class_counts": dict(zip(context.specs.recipe.task.classes, counts, strict=True)),
        "sums_sha256": exact_sums.digest_of(sums),
        "gamma": gamma,
        "gcv": [[each, error] for each, error in errors.items()],
    }
    return Outputs(model=context.weights(state), report=report)


def finetune(context: Context, settings: Settings) -> Outputs:
    """Fit the received model to this site's samples."""
    if context.received_one() is None:
        raise BundleError("E-BUNDLE-FORMAT", "fine-tuning needs the solved model")
    return fedseq.train(context, settings)


def _sums(sums: Sums, **report: Any) -> Outputs:
    from fedelmy_node.training.context import Outputs

    return Outputs(groups={SUMS: sums}, report=report)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError("E-CONFIG-VALUE", message)


OPERATIONS: Final = {
    TRAIN: Operation(
        run=train,
        traits=Traits(trains=True, leaves="statistics"),
        output=sums_spec,
        discloses=("class-counts",),
        tells=(
            "This site sums over all its samples except the test samples: the features that the"
            " model's frozen part gives, their products, and the number of samples of each class."
            " It adds these sums to those of the sites before it.",
            "Anyone who receives sums of a few samples can learn about each of them: for a class"
            " with one sample, the sum is that patient's feature vector.",
        ),
        hidden_by=MASK,
        fits=False,
    ),
    MASK: Operation(
        run=mask,
        traits=Traits(reads_data=False, leaves="", from_secret=True),
        inputs={},
        output=sums_spec,
        tells=(
            "The sums are hidden: the first site adds random numbers that only it knows, and"
            " removes them when the sums of all sites come back to it. So the first site learns"
            " the total of the other sites' sums; the others learn nothing from the sums they get."
            " The sites directly before and after this one could compute this site's sums, but"
            " only together.",
        ),
        is_replaceable=False,
    ),
    MERGE: Operation(
        run=merge,
        traits=Traits(reads_data=False, gathers=True, leaves="statistics"),
        inputs={MODEL: Takes(least=1, most=None)},
        output=sums_spec,
    ),
    SOLVE: Operation(
        run=solve,
        traits=Traits(reads_data=False),
        inputs={MODEL: Takes(least=1)},
        is_replaceable=False,
    ),
    UNMASK: Operation(
        run=unmask,
        traits=Traits(reads_data=False, gathers=True),
        inputs={MODEL: Takes(least=1), MASK: Takes(least=1)},
        is_replaceable=False,
    ),
    FINETUNE: Operation(
        run=finetune,
        traits=Traits(trains=True),
        inputs={MODEL: Takes(least=1)},
        effort=fedseq.effort,
    ),
}
RESULT: Final = Result(operation=SOLVE)
