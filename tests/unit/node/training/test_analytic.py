"""Operations of `analytic` at one site: nobody is counted twice, and a mask is made again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedelmy_node.domain.errors import ConsentError, FedelmyError
from fedelmy_node.domain.federation import ModelSpec, Recipe, StrategySpec
from fedelmy_node.domain.names import StepId
from fedelmy_node.domain.step_traits import MODEL
from fedelmy_node.store.durable_files import file_sha256
from fedelmy_node.training.bundle_file import read_bundle
from fedelmy_node.training.job import PREPARE, DataSpec, Input, Outcome
from fedelmy_node.training.loading import load
from fedelmy_node.training.step import run
from fedelmy_node.training.trainer import is_distributed
from tests.support.small_recipes import job, recipe


def analytic() -> Recipe:
    made = recipe(model="linear")
    return replace(made, strategy=StrategySpec(name="analytic"), model=ModelSpec(name="linear"))


class Sums:
    """Bundles of sums, by the sites that they contain."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def step(self, kind: str, *inputs: Input, site: str = "north", **more: Any) -> Outcome:
        made = job(kind, analytic(), site=site, output=self.root / f"{kind}-{site}", **more)
        return run(load(made), inputs, lambda *_: None)

    def of(self, *sites: str) -> Input:
        """The sums of these sites, each of which has all digits."""
        given: tuple[Input, ...] = ()
        for site in sites:
            self.step("train", *given, site=site)
            path = self.root / f"train-{site}"
            path = path.rename(self.root / "-".join(["sums", *sites[: sites.index(site) + 1]]))
            done = tuple(StepId(f"train.1@{each}") for each in sites[: sites.index(site) + 1])
            given = (Input(path, file_sha256(path), contributors=done),)
        return given[0]

    def samples(self, name: str) -> int:
        return int(read_bundle(self.root / name)["sums"]["counts"].sum())


@pytest.fixture
def sums(tmp_path: Path) -> Sums:
    return Sums(tmp_path)


def test_a_site_that_is_in_the_sums_passes_them_on(sums: Sums) -> None:
    given = sums.of("north", "south")
    outcome = sums.step("train", given, site="south")
    assert outcome.sha256 == given.sha256 and outcome.report == {"samples": 0}
    assert sums.step("train", given, site="west").report["samples"] > 0


@pytest.mark.parametrize(
    ("inputs", "counted"),
    [
        ([("a",), ("b",)], 2),
        ([("a", "b"), ("a", "b")], 2),
        ([("a",), ("a", "b"), ("c",)], 3),
        ([("a", "b"), ("c", "d"), ("d",)], 4),
    ],
)
def test_a_merge_counts_every_site_once(
    sums: Sums, inputs: list[tuple[str, ...]], counted: int
) -> None:
    sums.step("merge", *(sums.of(*sites) for sites in inputs))
    each = sums.samples("sums-a")
    assert sums.samples("merge-north") == counted * each


def test_sums_that_share_a_site_cannot_be_added(sums: Sums) -> None:
    with pytest.raises(FedelmyError, match="two of the sums contain site b"):
        sums.step("merge", sums.of("a", "b"), sums.of("b", "c"))


def test_a_mask_is_the_same_whenever_it_is_made(sums: Sums) -> None:
    first = sums.step("mask", secret="ab" * 32)
    assert sums.step("mask", secret="ab" * 32).sha256 == first.sha256
    assert sums.step("mask", secret="cd" * 32).sha256 != first.sha256
    with pytest.raises(FedelmyError, match="no secret"):
        sums.step("mask")
    assert "ab" * 32 not in repr(job("mask", analytic(), secret="ab" * 32))


def test_another_mask_is_noticed(sums: Sums) -> None:
    def masks(secret: str) -> Input:
        sums.step("mask", secret=secret)
        path = (sums.root / "mask-north").rename(sums.root / f"mask-{secret[:2]}")
        return Input(path, file_sha256(path), operation="mask")

    right, wrong = masks("ab" * 32), masks("cd" * 32)
    sums.step("train", right)
    path = (sums.root / "train-north").rename(sums.root / "masked")
    known = (StepId("train.1@north"),)
    given = Input(path, file_sha256(path), contributors=known)
    sums.step("unmask", given, replace(right, role="mask"))
    sums.step("solve", sums.of("north"), site="south")
    solved = [read_bundle(sums.root / name)[MODEL] for name in ("unmask-north", "solve-south")]
    assert all(np.array_equal(solved[0][name], solved[1][name]) for name in solved[0])
    with pytest.raises(FedelmyError, match="the sums are inconsistent"):
        sums.step("unmask", given, replace(wrong, role="mask"))
    with pytest.raises(FedelmyError, match="do not begin at this site"):
        sums.step("unmask", replace(given, contributors=()), replace(right, role="mask"))


def test_sums_are_computed_by_one_process() -> None:
    """Several would share the threads, on which the last bits of features depend."""
    kinds = ("train", "mask", "solve", "finetune")
    several = {kind: is_distributed(job(kind, analytic(), processes=2)) for kind in kinds}
    assert several == {"train": False, "mask": False, "solve": False, "finetune": True}


def images(path: Path, smallest: int) -> DataSpec:
    """Forty images of nine digits each, and fewer of the last one."""
    labels = np.repeat(np.arange(10), [40] * 9 + [smallest])
    np.savez(path, images=np.zeros((len(labels), 8, 8), np.uint8), labels=labels)
    return DataSpec(source=f"npz:{path}")


def test_a_class_that_became_small_after_the_run_was_accepted(sums: Sums) -> None:
    path = sums.root / "digits.npz"
    made = replace(job(PREPARE, analytic()), data=images(path, 40))
    assert run(load(made), (), lambda *_: None).report["smallest_class"] >= 10
    data = images(path, 6)
    step = replace(
        job("train", analytic(), output=sums.root / "train-north", min_class_samples=10), data=data
    )
    with pytest.raises(ConsentError, match="a class with fewer than 10 samples") as caught:
        run(load(step), (), lambda *_: None)
    assert caught.value.code == "E-CONSENT-SMALL" and not (sums.root / "train-north").exists()
    assert "site north" in caught.value.message and "min_class_samples" in caught.value.hint
    assert not {"5", "6", "9"} & set(caught.value.message), "neither class nor number"
    run(load(replace(step, min_class_samples=1)), (), lambda *_: None)


def test_a_limit_for_classes_changes_nothing_where_it_is_met(sums: Sums) -> None:
    usual = sums.step("train")
    assert sums.step("train", min_class_samples=10).sha256 == usual.sha256
    assert job("train", analytic()).min_class_samples == 1, "simulation has no limit"
