"""Operations: what a strategy can compute, and what daemon and launcher know of it without torch.

A strategy's module has `Settings` (a frozen dataclass) and `OPERATIONS`. An operation takes
artifacts by role and gives one artifact: named groups of tensors with a spec that is known before
anything runs. It may also leave a state, which the next step of the run at the same site finds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from fedelmy_node.domain.errors import ConfigError, RunError
from fedelmy_node.domain.federation import Training
from fedelmy_node.domain.plan_steps import Step
from fedelmy_node.domain.step_traits import BUILT_IN, EVALUATE, MERGE, MODEL, TRAIN, Traits

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedelmy_node.training.context import Context, Outputs, Specs

    Groups = Mapping[str, Mapping[str, Tensor]]
    """Group -> name -> tensor, such as {"model": model.state_dict()}."""

SAMPLE_COUNTS: Final = "sample-counts"
"""As in `[consent] disclose`: the output tells how many samples it was trained on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """The work of a step, for consent, display and disk space."""

    members: int
    """Models that the step fits."""
    epochs: int
    """Epochs for each of them."""
    warmup_epochs: int = 0
    """Epochs before them, for a model that they start from."""

    @property
    def total_epochs(self) -> int:
        return self.warmup_epochs + self.members * self.epochs

    @property
    def longest_fit(self) -> int:
        return max(self.warmup_epochs, self.epochs)


NO_EFFORT: Final = Effort(members=0, epochs=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Takes:
    """How many inputs an operation takes in one role."""

    least: int = 0
    most: int | None = 1
    """None: any number."""

    def allows(self, count: int) -> bool:
        return self.least <= count and (self.most is None or count <= self.most)


def model_spec(specs: Specs) -> Groups:
    """The spec of a bundle that is one model of the recipe."""
    return {MODEL: specs.model}


def _effort(settings: Any, training: Training, *, begins: bool) -> Effort:
    return NO_EFFORT


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One kind of step of a strategy."""

    run: Callable[[Context, Any], Outputs]
    """Compute a step with the strategy's settings."""
    traits: Traits = BUILT_IN[TRAIN]
    """What daemons have to know; they travel in the plan."""
    inputs: Mapping[str, Takes] = field(default_factory=lambda: {MODEL: Takes()})
    """By role."""
    output: Callable[[Specs], Groups] = model_spec
    """The groups of its output as meta tensors, from recipe, settings and class counts alone."""
    state: Callable[[Specs], Groups] | None = None
    """The groups of the state that it leaves; None: none. Its traits have `keeps_state` then."""
    effort: Callable[..., Effort] = _effort
    """`effort(settings, training, begins=...)`; `begins`: no model was received."""
    discloses: tuple[str, ...] = ()
    """Entries of `[consent] disclose` that its output implies."""
    tells: tuple[str, ...] = ()
    """What its output tells the sites that receive it, in sentences for an administrator."""
    hidden_by: str = ""
    """The operation that hides what the output tells, where a plan uses it so that it does."""
    fits: bool = True
    """Whether it fits models, if it reads data; several processes of a site may do so."""
    is_replaceable: bool = True
    """Whether steps behind a skipped one can use its `model` input instead of its output."""

    def __post_init__(self) -> None:
        if self.traits.keeps_state != (self.state is not None):
            given, missing = "keeps_state in its traits", "a spec of its state"
            if self.state is not None:
                given, missing = missing, given
            message = f"an operation with {given} must also have {missing}"
            raise ConfigError("E-CONFIG-EXTENSION", message)

    def check(self, step: Step) -> None:
        """Refuse a step that does not give the operation the inputs that it takes."""
        roles = [step.role_of(need) for need in step.needs]
        for role in roles:
            if role not in self.inputs:
                message = f"invalid plan: {step.id} has an input {role[:40]!r}, which {step.kind}"
                raise RunError("E-RUN-PLAN", f"{message} does not accept")
        for role, takes in self.inputs.items():
            if not takes.allows(roles.count(role)):
                message = f"invalid plan: {step.id} has the wrong number of inputs {role!r}: {roles.count(role)}"
                raise RunError("E-RUN-PLAN", message)


def _mean(context: Context, settings: Any) -> Outputs:
    from fedelmy_node.training.context import Outputs

    return Outputs(model=context.mean(context.received))


def _evaluate(context: Context, settings: Any) -> Outputs:
    return context.evaluate()


DEFAULTS: Final[Mapping[str, Operation]] = {
    MERGE: Operation(run=_mean, traits=BUILT_IN[MERGE], inputs={MODEL: Takes(least=1, most=None)}),
    EVALUATE: Operation(run=_evaluate, traits=BUILT_IN[EVALUATE], inputs={MODEL: Takes(least=1)}),
}
"""The operations of every strategy that does not declare them itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a run ends with, and how it predicts."""

    kind: Literal["model", "ensemble"] = "model"
    """model: one model; ensemble: the mean of the probabilities of several."""
    module: Callable[[Callable[[Mapping[str, Tensor]], nn.Module], Groups], nn.Module] | None = None
    """Build the module that turns images into scores, from the bundle's groups and `make`, which
    makes a model of a state dict; None: as the kind says."""
    is_personal: bool = False
    """Every site has its own, which does not leave it."""
    operation: str = ""
    """The operation that makes it; empty: any, all make the same kind of bundle."""
