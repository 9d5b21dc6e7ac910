"""Operations of strategies in simulation: states, groups of several types, kinds of results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedelmy_launcher.simulate.simulation import Simulation
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_node.bundle.format import read_header
from fedelmy_node.domain.errors import RunError
from fedelmy_node.domain.events import Event
from fedelmy_node.domain.names import SiteName, StepId
from fedelmy_node.training.bundle_file import read_bundle
from fedelmy_node.training.job import DataSpec
from tests.support import methods
from tests.support.federations import make_plan


class Simulated:
    """A run that was simulated: its result, its events, its bundles."""

    def __init__(self, root: Path, name: str, sites: str, **changes: Any) -> None:
        recipe = methods.recipe_of(name) | changes.pop("recipe", {})
        plan = make_plan(*sites, recipe=recipe, **changes)
        self.events: list[Event] = []
        progress = RunProgress(plan)
        data = {SiteName(site): DataSpec(source="digits") for site in sites}

        def tell(event: Event) -> None:
            self.events.append(event)
            progress.add(event)

        self.simulation = Simulation(plan, data, root / "simulated", tell)
        self.simulation.run()
        self.result = progress.result()

    def bundle(self, step: str) -> Any:
        return read_bundle(self.path(step))

    def path(self, step: str) -> Path:
        return self.simulation.bundle(StepId(step))

    def reports(self, key: str) -> dict[str, Any]:
        """What the steps reported under this key."""
        found = [(event.step, event.data.get("result", {})) for event in self.events]
        return {str(step): result[key] for step, result in found if key in result}


Simulate = Callable[..., Simulated]


@pytest.fixture
def simulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Simulate:
    methods.install(monkeypatch)
    return lambda name, sites, **changes: Simulated(tmp_path, name, sites, **changes)


def test_every_visit_finds_what_the_last_one_left(simulate: Simulate) -> None:
    run = simulate("remembers", "ab", topology="ring", topology_settings={"rounds": 3})
    assert run.reports("visits") == {
        "train.1@a": 1,
        "train.2@b": 1,
        "train.3@a": 2,
        "train.4@b": 2,
        "train.5@a": 3,
        "train.6@b": 3,
    }
    assert run.result["state"] == "done" and not run.result["results_differ"]


@pytest.mark.parametrize(("wire", "stored"), [("float32", "F32"), ("bfloat16", "BF16")])
def test_groups_keep_their_types_and_only_models_and_float32_are_converted(
    simulate: Simulate, wire: str, stored: str
) -> None:
    run = simulate("mixes", "abc", recipe={"wire_dtype": wire})
    step = "train.3@c"
    dtypes = {tensor.name: tensor.dtype for tensor in read_header(run.path(step)).manifest}
    assert dtypes.pop("half/values") == "BF16" and dtypes.pop("counts/steps") == "I64"
    assert set(dtypes.values()) == {stored}
    groups = run.bundle(step)
    assert groups["counts"]["steps"].tolist() == [3, 3, 3]
    expected = methods.MIXED_START["half"]["values"] / 3 / 3 / 3
    assert torch.equal(groups["half"]["values"], expected)
    assert groups["half"]["values"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lies", "operation train returned tensors other than those it declares"),
        ("forgets", "operation train returned a state, but declares none"),
    ],
)
def test_what_an_operation_did_not_declare_is_refused(
    simulate: Simulate, name: str, message: str
) -> None:
    with pytest.raises(RunError, match=rf"E-RUN-PLAN.*{message}"):
        simulate(name, "a")


def test_inputs_have_their_roles(simulate: Simulate) -> None:
    run = simulate("distils", "abc", deliver="last")
    assert run.reports("teachers") == {"distil.4@c": 2}
    trained = [run.bundle(step)["model"] for step in ("train.1@a", "train.2@b", "train.3@c")]
    for name, tensor in run.bundle("distil.4@c")["model"].items():
        mean = torch.stack([state[name].double() for state in trained]).mean(dim=0)
        assert torch.allclose(tensor.double(), mean, atol=1e-7)


def test_personal_results_are_each_sites_own(simulate: Simulate) -> None:
    run = simulate("personal", "ab")
    sites = {site["name"]: site for site in run.result["sites"]}
    assert sites["a"]["bundle_sha256"] != sites["b"]["bundle_sha256"]
    assert not run.result["results_differ"] and run.result["state"] == "done"
    assert (run.result["bytes_sent"], run.result["bytes_delivered"]) == (0, 0)
    assert {site["accuracy"] is not None for site in run.result["sites"]} == {True}


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_an_ensemble_has_the_models_as_they_were_sent(simulate: Simulate, wire: str) -> None:
    run = simulate("votes", "ab", recipe={"wire_dtype": wire})
    collected = run.bundle("collect.5@b")
    for group, step in (("model.0", "train.3@a"), ("model.1", "train.4@b")):
        sent = run.bundle(step)["model"]
        assert collected[group].keys() == sent.keys()
        assert all(torch.equal(collected[group][name], sent[name]) for name in sent)
    assert not run.result["results_differ"] and run.result["accuracy"] > 0.5
