"""What an operation works with: its inputs, the model, the site's samples, and `fit`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedelmy_node.domain.errors import BundleError, RunError
from fedelmy_node.domain.federation import Recipe, Training
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.step_traits import MODEL
from fedelmy_node.training.absent_classes import both, distillation_of
from fedelmy_node.training.averaging import mean_weights
from fedelmy_node.training.bundle_file import Groups, shapes_of
from fedelmy_node.training.fit import Bench, Best, FitOrder, fit, validate
from fedelmy_node.training.frozen_features import Features
from fedelmy_node.training.loops import EVERY_SECONDS, LoopOrder, State, unsaved
from fedelmy_node.training.loss import BatchTerm
from fedelmy_node.training.regularisers import Regulariser
from fedelmy_node.training.seeds import derive
from fedelmy_node.training.weights import FlatModel, Weights

Keep = Callable[[int, Weights], None]
"""Saves a pool member, if the site keeps them."""
Fit = Callable[[Bench, FitOrder, Weights, Regulariser | None, BatchTerm | None], Best]
"""Fits one model, with or without checkpoints."""
Loop = Callable[[LoopOrder, State, float], Iterator[int]]
"""Counts the iterations of a loop, with or without checkpoints."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Specs:
    """What the spec of an artifact may depend on."""

    recipe: Recipe
    settings: Any
    """The strategy's."""
    module: Mapping[str, Tensor]
    """The model's state dict."""
    head: str = ""
    """Path of the model's head; empty if no layer is known as it."""

    @property
    def model(self) -> Mapping[str, Tensor]:
        """One more model: a state dict of meta tensors."""
        return shapes_of(self.module)

    @property
    def classes(self) -> int:
        return len(self.recipe.task.classes)

    @staticmethod
    def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Outputs:
    """What an operation gives."""

    model: Weights | None = None
    """The group `model`."""
    groups: Groups = field(default_factory=dict)
    """The other groups."""
    state: Groups | None = None
    """For the next step of the run at this site."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """Counts and metrics for the operator; disclosed as the site allows."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Artifact:
    """One input of a step."""

    role: str
    groups: Groups
    """On the CPU."""
    weights: Weights | None
    """The group `model`, if it has one, on the step's device."""
    sites: frozenset[SiteName] = frozenset()
    """Those whose training it contains."""


@dataclass(kw_only=True, slots=True, eq=False)
class Context:
    """One step, as its operation sees it."""

    model: FlatModel
    """The module that everything is computed with; most methods overwrite its values."""
    initial: Weights
    """The random initial model."""
    inputs: Sequence[Artifact]
    """In the plan's order."""
    state: Groups | None = None
    """What the last step of the run at this site left; None: there is none."""
    reads: Bench | None = None
    """The site's samples, loss and device; None if the operation does not fit models."""
    read_features: Callable[[], Features] | None = None
    """Computes `features`."""
    known: Specs | None = None
    """See `specs`."""
    secret: bytes = b""
    """For operations whose traits have `from_secret`."""
    keep: Keep = lambda member, weights: None
    fit_one: Fit = fit
    loop_one: Loop = unsaved
    place: tuple[str | int, ...] = (0,)
    """The run's seed, the site and the visit."""
    test: Callable[[], Outputs] | None = None
    """What an evaluate step does."""
    accuracies: list[float | None] = field(default_factory=list)
    """Validation accuracies of the fitted members, for the step's report."""
    pool: list[Weights] = field(default_factory=list)
    """The members passed to `keep_member`, for the step's report."""

    def role(self, role: str) -> tuple[Artifact, ...]:
        """Return the inputs in one role."""
        return tuple(given for given in self.inputs if given.role == role)

    @property
    def received(self) -> tuple[Weights, ...]:
        """The models that were received, in the plan's order."""
        return tuple(g.weights for g in self.role(MODEL) if g.weights is not None)

    def received_one(self) -> Weights | None:
        """The input of an operation that takes at most one model."""
        if len(self.received) > 1:
            message = f"the step has {len(self.received)} inputs; its strategy takes one"
            raise RunError("E-RUN-PLAN", message)
        return self.received[0] if self.received else None

    def mean(self, models: Sequence[Weights], counts: Sequence[int] | None = None) -> Weights:
        """Average models, weighted by `counts` if given."""
        if not models:
            raise RunError("E-RUN-PLAN", "a step that averages models has no input")
        return mean_weights(models, counts)

    def weights(self, state: Mapping[str, Tensor]) -> Weights:
        """Turn a state dict, such as a group of an input, into weights; see `state_dict`."""
        self.model.load_state_dict(state)
        return self.model.weights()

    def state_dict(self, weights: Weights) -> dict[str, Tensor]:
        """Turn weights into a state dict, as a group of an output or a state."""
        self.model.load(weights)
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def random(self, *place: str | int) -> torch.Generator:
        """Return a new random generator of one place, such as ("noise", iteration)."""
        seed, *rest = self.place
        generator = torch.Generator()
        return generator.manual_seed(derive(int(seed), *rest, "random", *place))

    def secret_bytes(self, count: int) -> bytes:
        """Expand the site's secret, which nobody else knows, to so many random bytes."""
        if not self.secret:
            raise RunError("E-RUN-PLAN", "this operation has no secret of the site")
        return hashlib.shake_256(self.secret).digest(count)

    @property
    def specs(self) -> Specs:
        """What the specs of artifacts depend on: recipe, classes, the model's head."""
        assert self.known is not None, "a step's context has them"
        return self.known

    @property
    def site(self) -> SiteName:
        """The site whose step this is."""
        return SiteName(str(self.place[1]))

    def loop(
        self, name: str, count: int, state: State, *, every_seconds: float = EVERY_SECONDS
    ) -> Iterator[int]:
        """Count from 0, or from where a process that was killed had been, with its `state`.

        `state` has everything that the iterations change: tensors, numbers, random generators, by
        name. Tensors are restored in place. `count` is an upper limit; a loop may end early.
        """
        return self.loop_one(LoopOrder(name=name, count=count), state, every_seconds)

    # --- with the site's samples

    @property
    def bench(self) -> Bench:
        """What all fits share: samples, loss, device; not for operations that read no data."""
        if self.reads is None:
            raise RunError("E-RUN-PLAN", "this operation does not fit models to the site's data")
        return self.reads

    def features(self) -> Features:
        """What the head of the initial model receives for each sample that is not a test sample."""
        if self.read_features is None:
            raise RunError("E-RUN-PLAN", "this operation does not read the site's data")
        self.model.load(self.initial)
        return self.read_features()

    @property
    def training(self) -> Training:
        """The recipe's settings, such as epochs and learning rate."""
        return self.bench.training

    @property
    def samples(self) -> int:
        """The number of training samples of this site."""
        return self.bench.batches.samples

    def expect(self, *, epochs: int) -> None:
        """Announce the step's total epochs, once at the start, for time estimates."""
        self.bench.progress.expect(epochs)

    def keep_member(self, member: int, weights: Weights) -> None:
        """Add a pool member to the report, and save it if the site keeps them."""
        self.pool.append(weights)
        self.keep(member, weights)

    def fit(
        self,
        start: Weights,
        *,
        member: int,
        members: int,
        epochs: int,
        regulariser: Regulariser | None = None,
        term: BatchTerm | None = None,
    ) -> Weights:
        """Train a model from `start`; return its best validation epoch. Member 0 is the warm-up.

        The objective is the recipe's loss with its distillation of absent classes, plus `term`,
        which sees each batch, plus `regulariser`, which sees the parameters. All numbers of `term` must come from the step's inputs and seeds.
        """
        order = FitOrder(member=member, members=members, epochs=epochs)
        teacher = self.received[0] if len(self.received) == 1 else None
        term = both(term, distillation_of(self.bench, teacher))
        best = self.fit_one(self.bench, order, start, regulariser, term)
        if member:
            self.accuracies.append(best.accuracy)
        return best.weights

    def accuracy(self, weights: Weights) -> float | None:
        """Return a model's accuracy on the site's validation samples; None if it has none."""
        self.bench.model.load(weights)
        return validate(self.bench).accuracy

    def evaluate(self) -> Outputs:
        """Evaluate the result on the site's test samples."""
        assert self.test is not None, "only an evaluate step evaluates"
        return self.test()


def one_number(given: Artifact, group: str, name: str) -> int:
    """Return an integer that an input carries beside the model."""
    try:
        return int(given.groups[group][name].item())
    except (KeyError, RuntimeError) as error:
        message = f"an input has no number {group}/{name}"
        raise BundleError("E-BUNDLE-FORMAT", message) from error
