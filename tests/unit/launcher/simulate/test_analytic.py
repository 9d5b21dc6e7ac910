"""The strategy `analytic` in simulation: the same sums and the same head, however sites are wired."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedelmy_launcher.plans.compiler import compile_plan
from fedelmy_launcher.simulate.simulation import Simulation
from fedelmy_launcher.view.progress import RunProgress
from fedelmy_node.config.decode import canonical_json
from fedelmy_node.domain.errors import ConfigError
from fedelmy_node.domain.events import Event
from fedelmy_node.domain.names import SiteName, StepId, run_id
from fedelmy_node.domain.plan import Plan
from fedelmy_node.domain.reports import ResultModel
from fedelmy_node.training.bundle_file import read_bundle
from fedelmy_node.training.data.indices import Indices, write_indices
from fedelmy_node.training.evaluation.inference import export_model, load_model, load_result
from fedelmy_node.training.job import DataSpec
from fedelmy_node.training.models.feature_head import UNIT
from tests.support.federations import make_federation, make_plan
from tests.support.small_weights import make_weights

SAMPLES, CLASSES = 240, 3
TASK = {
    "classes": ["0", "1", "2"],
    "input": {"height": 8, "width": 8, "channels": 3, "mean": [0.4] * 3, "std": [0.3] * 3},
}


def recipe(**settings: Any) -> dict[str, Any]:
    return {
        "seed": 5,
        "task": TASK,
        "model": {"name": "linear"},
        "training": {"epochs": 2, "batch_size": 16, "threads": 1, "learning_rate": 0.003},
        "strategy": {"name": "analytic", "settings": settings},
    }


class Simulated:
    """A run of the sites named by letters, which divide the samples at random."""

    def __init__(self, root: Path, plan: Plan, data: dict[SiteName, DataSpec]) -> None:
        self.events: list[Event] = []
        progress = RunProgress(plan)

        def tell(event: Event) -> None:
            self.events.append(event)
            progress.add(event)

        self.plan = plan
        self.simulation = Simulation(plan, data, root, tell, weights=root.parent / "weights")
        self.simulation.run()
        self.result = progress.result()
        self.steps = [str(step.id) for step in plan.steps]

    def bundle(self, step: str) -> Any:
        return read_bundle(self.path(step))

    def path(self, step: str) -> Path:
        return self.simulation.bundle(StepId(step))

    def reported(self, kind: str) -> list[dict[str, Any]]:
        """What the steps of a kind reported, in order."""
        done = [event for event in self.events if str(event.step or "").startswith(f"{kind}.")]
        return [event.data["result"] for event in done if "result" in event.data]

    @property
    def solved(self) -> dict[str, Any]:
        (report,) = self.reported("solve") or self.reported("unmask")
        return report


Simulate = Callable[..., Simulated]


@pytest.fixture
def source(tmp_path: Path) -> str:
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, SAMPLES + 60)
    noise = random.integers(0, 150, (SAMPLES + 60, 8, 8, 3))
    images = (noise + 35 * labels[:, None, None, None]).astype(np.uint8)
    path = tmp_path / "data.npz"
    held = {"images": images[:SAMPLES], "labels": labels[:SAMPLES]}
    np.savez(path, **held, test_images=images[SAMPLES:], test_labels=labels[SAMPLES:])
    return f"npz:{path}"


@pytest.fixture
def simulate(tmp_path: Path, source: str) -> Simulate:
    runs: list[Simulated] = []

    def run(sites: str, *, parts: int = 0, **changes: Any) -> Simulated:
        directory = tmp_path / f"run-{len(runs)}"
        directory.mkdir()
        plan = make_plan(*sites, **({"recipe": recipe()} | changes))
        random = np.random.default_rng(parts)
        order = random.permutation(SAMPLES)
        cuts = sorted(random.choice(np.arange(5, SAMPLES - 5, 5), len(sites) - 1, replace=False))
        data = {}
        for site, part in zip(sorted(sites), np.split(order, cuts), strict=True):
            name, path = SiteName(site), directory / f"{site}.json"
            chosen = tuple(sorted(part.tolist()))
            held = Indices(
                source_kind="npz", samples=SAMPLES, method="test", seed=0, site=name, indices=chosen
            )
            write_indices(path, held)
            data[name] = DataSpec(source=source, indices=path)
        runs.append(Simulated(directory, plan, data))
        return runs[-1]

    return run


WIRINGS: dict[str, dict[str, Any]] = {
    "chain": {},
    "chain in clear": {"recipe": recipe(masked=False)},
    "two masked": {"sites": "ab", "recipe": recipe(masked=True)},
    "other order": {"sites": "dbca"},
    "random order": {"order": "random"},
    "other parts": {"parts": 1},
    "ring": {"topology": "ring", "topology_settings": {"rounds": 3}},
    "mesh": {"topology": "mesh", "sites": "abc"},
    "mesh, rounds": {"topology": "mesh", "sites": "abc", "topology_settings": {"rounds": 3}},
    "groups": {
        "topology": "superclients",
        "topology_settings": {"groups": [["a", "c"], ["b", "d"]], "rounds": 2},
    },
    "pooled": {"sites": "a"},
}


def test_the_sums_and_the_head_are_those_of_pooled_data(simulate: Simulate) -> None:
    found = {name: simulate(**({"sites": "abcd"} | dict(how))) for name, how in WIRINGS.items()}
    pooled = found["pooled"]
    for name, run in found.items():
        assert run.solved["sums_sha256"] == pooled.solved["sums_sha256"], name
        assert run.result["bundle_sha256"] == pooled.result["bundle_sha256"], name
        assert run.solved["samples"] == SAMPLES, name
        assert run.solved["contributors"] == sorted({step.site for step in run.plan.steps}), name
        assert sum(report["samples"] for report in run.reported("train")) == SAMPLES, name
    assert pooled.result["accuracy"] > 0.6
    assert {report["samples"] for report in found["mesh"].reported("evaluate")} == {60}


def test_later_rounds_are_not_in_the_plan() -> None:
    def training(**changes: Any) -> list[str]:
        plan = make_plan(*"abcd", **({"recipe": recipe()} | changes))
        kinds = ("deliver", "evaluate")
        return [str(step.id) for step in plan.steps if step.kind not in kinds]

    rings = [training(topology="ring", topology_settings={"rounds": n}) for n in (1, 4)]
    assert rings[0] == rings[1] == training()
    assert rings[0][0] == "mask.0@a" and rings[0][-1] == "unmask.5@a" and len(rings[0]) == 6
    mesh = training(topology="mesh", topology_settings={"rounds": 2})
    assert mesh == [*(f"train.1@{site}" for site in "abcd"), "merge.1@a", "solve.2@a"]
    groups = {"groups": [["a", "b"], ["c", "d"]], "rounds": 3}
    grouped = training(topology="superclients", topology_settings=groups)
    assert len(grouped) == 6 and grouped[-2:] == ["merge.2@a", "solve.3@a"]


def test_the_head_is_ridge_regression_on_pooled_data(simulate: Simulate, source: str) -> None:
    run = simulate("abc", recipe=recipe(gamma=2.0, temperature=0.5))
    with np.load(source.removeprefix("npz:")) as data:
        images, labels = data["images"] / np.float32(255), data["labels"]
    pixels = ((images - 0.4) / 0.3).transpose(0, 3, 1, 2).reshape(SAMPLES, -1)
    design = pixels / np.maximum(1, np.linalg.norm(pixels, axis=1, keepdims=True))
    design = np.append(np.rint(design * UNIT) / UNIT, np.ones((SAMPLES, 1)), axis=1)
    square = design.T @ design + 2.0 * np.eye(design.shape[1])
    expected = np.linalg.solve(square, design.T @ np.eye(CLASSES)[labels]) / 0.5
    model = run.bundle("unmask.4@a")["model"]
    assert np.allclose(model["1.linear.weight"].numpy(), expected[:-1].T, atol=1e-4)
    assert np.allclose(model["1.linear.bias"].numpy(), expected[-1], atol=1e-4)


def test_a_masked_sum_looks_random_and_its_mask_stays(simulate: Simulate) -> None:
    first, second = simulate("abc"), simulate("abc")
    clear = simulate("abc", recipe=recipe(masked=False))
    assert first.result["bundle_sha256"] == second.result["bundle_sha256"]
    for step in ("mask.0@a", "train.1@a", "train.2@b", "train.3@c"):
        sums = first.bundle(step)["sums"]
        assert first.path(step).read_bytes() != second.path(step).read_bytes()
        top = np.bincount(sums["products"].numpy().view(np.uint64) >> np.uint64(61), minlength=8)
        assert top.min() > len(sums["products"]) / 10, "the highest bits are random, too"
    assert int(clear.bundle("train.3@c")["sums"]["counts"].sum()) == SAMPLES
    sent = {event.data["edge"] for event in first.events if event.kind == "sent"}
    assert not [edge for edge in sent if edge.startswith("mask")]
    mask, hidden = first.bundle("mask.0@a")["sums"], first.bundle("train.3@c")["sums"]
    for name, tensor in clear.bundle("train.3@c")["sums"].items():
        assert torch.equal(hidden[name] - mask[name], tensor), name


def test_gamma_is_chosen_from_the_sums_alone(simulate: Simulate) -> None:
    chosen = simulate("abc").solved
    curve = dict(map(tuple, chosen["gcv"]))
    assert chosen["gamma"] in curve and curve[chosen["gamma"]] == min(curve.values())
    fixed = simulate("abc", recipe=recipe(gamma=7)).solved
    assert fixed["gamma"] == 7 and len(fixed["gcv"]) == 1


def backbone(tmp_path: Path, train: Any = "head", **settings: Any) -> dict[str, Any]:
    """A recipe with a frozen network; all but its seed decides the features."""
    weights = make_weights(tmp_path / "weights", "cnn-small")
    made = recipe(**settings)
    made["task"] = {**TASK, "input": {**TASK["input"], "height": 32, "width": 32}}
    made["model"] = {
        "name": "cnn-small",
        "weights": {"file": weights.file, "sha256": weights.sha256},
        "train": train,
    }
    return made


@pytest.mark.parametrize("settings", [{}, {"random_features": 600}])
def test_a_backbone_gives_the_same_sums_in_every_partition(
    simulate: Simulate, tmp_path: Path, settings: dict[str, Any]
) -> None:
    wanted = backbone(tmp_path, **settings)
    pooled, *others = (
        simulate(sites, parts=len(sites), recipe=wanted) for sites in ("a", "ab", "abcd")
    )
    for run in others:
        assert run.solved["sums_sha256"] == pooled.solved["sums_sha256"]
        assert run.result["bundle_sha256"] == pooled.result["bundle_sha256"]
    assert pooled.result["accuracy"] > 0.6
    width = settings.get("random_features", 512)
    assert pooled.bundle("solve.2@a")["model"]["7.linear.weight"].shape == (CLASSES, width)
    edges = [event for event in others[-1].events if event.kind == "sent"]
    packed = 8 * ((width + 1) * (width + 2) // 2 + (width + 1 + 1) * CLASSES)
    assert edges[0].data["bytes"] == pytest.approx(packed, abs=600)


@pytest.mark.parametrize("random_features", [0, 40])
def test_the_result_predicts_and_is_exported(
    simulate: Simulate, tmp_path: Path, source: str, random_features: int
) -> None:
    wanted = backbone(tmp_path, random_features=random_features)
    run = simulate("ab", recipe=wanted)
    result = ResultModel(
        run=run_id("run-1"),
        site=SiteName("a"),
        path=str(run.path("deliver.1@b")),
        sha256=run.result["bundle_sha256"],
        size=0,
        recipe=canonical_json(run.plan.recipe),
        data=source,
        indices="",
        unreadable="refuse",
        weights=str(tmp_path / "weights"),
    )
    export_model(result, tmp_path / "model.safetensors")
    exported, known = load_model(tmp_path / "model.safetensors"), load_result(result)
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(exported.module(images), known.module(images))
    assert set(load_file(tmp_path / "model.safetensors")) >= {"7.linear.weight", "0.weight"}


@pytest.mark.parametrize(("train", "masked"), [("head", False), ("head", True), ("all", False)])
def test_a_lap_of_fine_tuning_follows(
    simulate: Simulate, tmp_path: Path, train: str, masked: bool
) -> None:
    wanted = backbone(tmp_path, train, finetune=True, masked=masked)
    run = simulate("abc", recipe=wanted)
    kinds = [step for step in run.steps if not step.startswith(("deliver", "evaluate"))]
    expected = "abc" if masked else "cab"
    assert kinds[-3:] == [f"finetune.{5 + n}@{site}" for n, site in enumerate(expected)]
    plain = simulate("abc", recipe=backbone(tmp_path, train, masked=masked))
    assert run.solved == plain.solved
    assert run.result["bundle_sha256"] != plain.result["bundle_sha256"]
    assert run.result["accuracy"] >= plain.result["accuracy"] - 0.1
    assert [report["train"] for report in run.reported("finetune")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": {"gamma": 0}}, "gamma must be above 0"),
        ({"strategy": {"random_features": 9000}}, "random_features: 0 to 8192"),
        ({"training": {"augment": ["flip"]}}, "augment has no effect without finetune"),
        ({"topology": "mesh", "strategy": {"masked": True}}, "masked needs at least two sites"),
        ({"topology": "mesh", "strategy": {"finetune": True}}, "finetune needs sites in a row"),
        ({"sites": "a", "strategy": {"masked": True}}, "masked needs at least two sites"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    wanted = recipe(**changes.pop("strategy", {}))
    wanted["training"] |= changes.pop("training", {})
    sites = changes.pop("sites", "abc")
    with pytest.raises(ConfigError, match=message):
        compile_plan(make_federation(*sites, recipe=wanted, **changes), run_id("run-1"))


def test_a_network_without_weights_is_refused(simulate: Simulate) -> None:
    wanted = recipe() | {"model": {"name": "cnn-small"}}
    with pytest.raises(ConfigError, match=r"weights for '0[.]weight'"):
        simulate("ab", recipe=wanted)


def members(skippable: str) -> list[dict[str, Any]]:
    return [
        {"name": site, "address": f"127.0.0.1:{50051 + at}"}
        | ({"on_unreachable": "skip"} if site in skippable else {})
        for at, site in enumerate("abcd")
    ]


@pytest.mark.parametrize(
    ("skippable", "settings", "refused"),
    [
        ("bcd", {}, ""),
        ("abcd", {}, "operation 'mask', so a cannot be skipped"),
        ("abc", {"masked": False}, ""),
        ("abcd", {"masked": False}, "operation 'solve', so d cannot be skipped"),
    ],
)
def test_only_the_site_that_solves_cannot_be_skipped(
    skippable: str, settings: dict[str, Any], refused: str
) -> None:
    wanted = {"recipe": recipe(**settings), "members": members(skippable)}
    if not refused:
        assert make_plan(*"abcd", **wanted).steps
        return
    with pytest.raises(ConfigError, match=refused):
        make_plan(*"abcd", **wanted)


def test_the_plan_says_what_the_operations_are() -> None:
    plan = make_plan(*"abc", recipe=recipe())
    assert plan.operations["mask"].from_secret and plan.operations["mask"].leaves == ""
    assert plan.operations["train"].leaves == "statistics" and plan.result == "solve"
    raw = json.loads(canonical_json(plan.slice_for(SiteName("b"))))
    assert "from_secret" not in raw["operations"]["train"], "older sites know no such key"
