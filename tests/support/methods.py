"""Small strategies with operations of their own; `install` adds them to the registry."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch
from torch import nn

from fedelmy_launcher.plans.topologies.wiring import Wiring, in_a_row, step, train
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.step_traits import Traits
from fedelmy_node.training import strategies
from fedelmy_node.training.context import Context, Outputs, Specs
from fedelmy_node.training.operations import DEFAULTS, Effort, Operation, Result, Takes
from fedelmy_node.training.strategies import STRATEGIES, StrategyEntry
from fedelmy_node.training.weights import Weights

Sites = Sequence[SiteName]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """No settings."""


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if they were built in; other processes do not know them."""
    monkeypatch.setattr(strategies.INSTALLED, "_built_in", registry())


def registry() -> dict[str, StrategyEntry]:
    entries = {name: StrategyEntry("of a test", f"{__name__}:{name.upper()}") for name in METHODS}
    return {**STRATEGIES, **entries}


def recipe_of(name: str, **training: Any) -> dict[str, Any]:
    """A recipe for `make_plan`: tiny images of digits."""
    return {
        "seed": 5,
        "task": {
            "classes": [str(digit) for digit in range(10)],
            "input": {"height": 8, "width": 8, "channels": 1},
        },
        "model": {"name": "mlp"},
        "training": {"epochs": 1, "batch_size": 64, "threads": 1, **training},
        "strategy": {"name": name},
    }


def _effort(settings: Any, training: Any, *, begins: bool) -> Effort:
    return Effort(members=1, epochs=training.epochs)


def _start(context: Context) -> Any:
    context.expect(epochs=context.training.epochs)
    return context.received_one() or context.initial


def _fit(context: Context, start: Any) -> Any:
    return context.fit(start, member=1, members=1, epochs=context.training.epochs)


def _with_state(context: Context, settings: Settings) -> Outputs:
    """Continue from the mean of what was received and what this site had last."""
    starts = [_start(context)]
    if context.state:
        starts.append(context.weights(context.state["own"]))
    model = _fit(context, context.mean(starts))
    visits = int(context.state["visits"]["n"]) if context.state else 0
    state = {"own": context.state_dict(model), "visits": {"n": torch.tensor([visits + 1])}}
    return Outputs(model=model, state=state, report={"visits": visits + 1})


def _state_spec(specs: Specs) -> Any:
    return {"own": specs.model, "visits": {"n": specs.tensor(1, dtype=torch.int64)}}


STATEFUL: Final = Operation(
    run=_with_state, effort=_effort, traits=Traits(trains=True, keeps_state=True), state=_state_spec
)
PLAIN: Final = Operation(
    run=lambda context, _: Outputs(model=_fit(context, _start(context))), effort=_effort
)


def _collect(context: Context, settings: Settings) -> Outputs:
    models = [given.groups["model"] for given in context.inputs]
    return Outputs(groups={f"model.{n}": model for n, model in enumerate(models)})


def _collected(sites: Sites, settings: Settings) -> Wiring:
    """Two rounds around the sites; the last one collects the two newest models."""
    steps = in_a_row([*sites, *sites])
    last = step("collect", len(steps) + 1, sites[-1], [known.id for known in steps[-2:]])
    return Wiring(steps=(*steps, last), results=(last.id,))


COLLECT: Final = Operation(
    run=_collect,
    traits=Traits(reads_data=False, gathers=True),
    inputs={"model": Takes(least=2, most=2)},
    output=lambda specs: {"model.0": specs.model, "model.1": specs.model},
    is_replaceable=False,
)


def _mixed(context: Context, settings: Settings) -> Outputs:
    """A model, and two groups of other types that count what has happened to them."""
    model = _fit(context, _start(context))
    given = context.inputs[0].groups if context.inputs else MIXED_START
    half, counts = given["half"]["values"], given["counts"]["steps"]
    assert (half.dtype, counts.dtype) == (torch.bfloat16, torch.int64)
    groups = {"half": {"values": half / 3}, "counts": {"steps": counts + 1}}
    return Outputs(model=model, groups=groups)


MIXED_START: Final = {
    "half": {"values": torch.linspace(-1, 1, 7, dtype=torch.bfloat16)},
    "counts": {"steps": torch.zeros(3, dtype=torch.int64)},
}


def _mixed_spec(specs: Specs) -> Any:
    return {
        "model": specs.model,
        "half": {"values": specs.tensor(7, dtype=torch.bfloat16)},
        "counts": {"steps": specs.tensor(3, dtype=torch.int64)},
    }


MIXED: Final = Operation(run=_mixed, effort=_effort, output=_mixed_spec)


def _distilled(sites: Sites, settings: Settings) -> Wiring:
    """A student and two teachers at different sites; the last site distils."""
    first, *others = (train(number, site, 1) for number, site in enumerate(sites, start=1))
    roles = {first.id: "model", **{teacher.id: "teacher" for teacher in others}}
    last = step("distil", len(sites) + 1, sites[-1], roles)
    return Wiring(steps=(first, *others, last), results=(last.id,))


def _distil(context: Context, settings: Settings) -> Outputs:
    (student,), teachers = context.received, context.role("teacher")
    mean = context.mean([student, *(given.weights for given in teachers if given.weights)])
    return Outputs(model=mean, report={"teachers": len(teachers)})


DISTIL: Final = Operation(
    run=_distil,
    traits=Traits(reads_data=False, gathers=True),
    inputs={"model": Takes(least=1), "teacher": Takes(least=1, most=3)},
)


def _alone(sites: Sites, settings: Settings) -> Wiring:
    """Every site trains its own model; they exchange nothing."""
    steps = tuple(train(1, site, 1) for site in sites)
    return Wiring(steps=steps, results=tuple(known.id for known in steps))


def _liar(context: Context, settings: Settings) -> Outputs:
    return replace(_mixed(context, settings), groups=MIXED_START | {"more": MIXED_START["half"]})


def _method(result: Result | None = None, wire: Any = None, **operations: Operation) -> Any:
    method = SimpleNamespace(Settings=Settings, OPERATIONS=operations)
    if wire is not None:
        method.wire = wire
    if result is not None:
        method.RESULT = result
    return method


PAUSE_SECONDS = 0.0
"""What an iteration of `polishing` takes at least, and ten times that of `rounding`: a test has to
find them."""


def _polished(context: Context, start: Weights) -> Weights:
    """Add noise in a loop that has tensors, numbers and a generator."""
    noise = context.random("noise")
    state = {"vector": start.vector.clone(), "noise": noise, "steps": 0, "sum": 0.0}
    for index in context.loop("polishing", 30, state, every_seconds=0):
        drawn = torch.randn(start.vector.shape, generator=noise)
        state["vector"] += 1e-3 * drawn + 1e-4 * context.random(index).initial_seed() / 2**63
        state["steps"] += 1
        state["sum"] += drawn.mean().item()
        time.sleep(PAUSE_SECONDS)
    assert state["steps"] == 30
    return Weights(vector=state["vector"] + state["sum"], rest=start.rest)


def _looping(context: Context, settings: Settings) -> Outputs:
    """A fit, a loop, and a loop with loops and fits inside."""
    context.expect(epochs=4)
    weights = context.fit(_start(context), member=0, members=3, epochs=1)
    weights = _polished(context, weights)
    state = {"vector": weights.vector.clone()}
    for index in context.loop("rounding", 3, state, every_seconds=0):
        time.sleep(10 * PAUSE_SECONDS)
        for _ in context.loop("halving", 2, state, every_seconds=0):
            state["vector"] *= 0.9
        start = Weights(vector=state["vector"], rest=weights.rest)
        fitted = context.fit(start, member=index + 1, members=3, epochs=1)
        state["vector"] = fitted.vector.clone()
    return Outputs(model=Weights(vector=state["vector"], rest=weights.rest))


def _polish(context: Context, settings: Settings) -> Outputs:
    return Outputs(model=_polished(context, context.mean(context.received)))


class Scaled(nn.Module):
    """A model whose scores are multiplied by a vector of the bundle."""

    def __init__(self, inner: nn.Module, scale: torch.Tensor) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("scale", scale.float())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.inner(images) * self.scale
        return scores


def _scaled_spec(specs: Specs) -> Any:
    return {"model": specs.model, "scale": {"by": specs.tensor(specs.classes)}}


SCALED = Result(module=lambda make, groups: Scaled(make(groups["model"]), groups["scale"]["by"]))
REMEMBERS = _method(train=STATEFUL)
_ENSEMBLE = Result(kind="ensemble", operation="collect")
VOTES = _method(_ENSEMBLE, _collected, train=STATEFUL, collect=COLLECT)
MIXES = _method(train=MIXED)
LIES = _method(train=replace(MIXED, run=_liar))
FORGETS = _method(train=replace(PLAIN, run=_with_state))
DISTILS = _method(Result(operation="distil"), _distilled, train=PLAIN, distil=DISTIL)
PERSONAL = _method(Result(is_personal=True), _alone, train=PLAIN)
SECRET = _method(train=replace(PLAIN, traits=Traits(trains=True, leaves="")))
SCALES = _method(SCALED, train=replace(PLAIN, output=_scaled_spec))
LOOPS = _method(train=replace(PLAIN, run=_looping), merge=replace(DEFAULTS["merge"], run=_polish))
METHODS: Final = (
    "remembers",
    "votes",
    "mixes",
    "lies",
    "forgets",
    "distils",
    "personal",
    "secret",
    "scales",
    "loops",
)
