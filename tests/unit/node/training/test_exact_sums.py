"""Sums that do not depend on order and parts, masks, and ridge regression from sums alone."""

from __future__ import annotations

import hashlib
from functools import reduce

import numpy as np
import pytest
import torch

from fedelmy_node.domain.errors import BundleError, TrainingError
from fedelmy_node.training import exact_sums
from fedelmy_node.training.exact_sums import Ridge, Sums, added, check, digest_of, sums_of
from fedelmy_node.training.models.feature_head import UNIT, exact_inputs, feature_head

CLASSES, WIDTH = 3, 17


def inputs(count: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    features = torch.randn(count, WIDTH, generator=generator) + labels.unsqueeze(1)
    return exact_inputs(feature_head(torch.nn.Linear(WIDTH, CLASSES), 0, 1), features), labels


def total(parts: list[torch.Tensor]) -> Sums:
    z, labels = inputs()
    return reduce(added, (sums_of([z[part]], labels[part], CLASSES) for part in parts))


@pytest.mark.parametrize("seed", range(3))
def test_order_and_parts_do_not_change_a_byte(seed: int) -> None:
    pooled = digest_of(total([torch.arange(200)]))
    shuffled = torch.randperm(200, generator=torch.Generator().manual_seed(seed))
    cuts = sorted(np.random.default_rng(seed).choice(200, 5, replace=False).tolist())
    parts = list(torch.tensor_split(shuffled, cuts))
    assert digest_of(total(parts)) == pooled
    assert digest_of(total(parts[::-1])) == pooled
    z, labels = inputs()
    assert digest_of(sums_of(z.split(7), labels, CLASSES)) == pooled, "in blocks of seven rows"


def test_the_sums_are_those_of_python_integers() -> None:
    z, labels = inputs(20)
    sums = sums_of([z], labels, CLASSES)
    rows = [[int(value) for value in row] for row in z.tolist()]
    width = len(rows[0])
    products = [sum(row[i] * row[j] for row in rows) for i in range(width) for j in range(i, width)]
    assert sums["products"].tolist() == products
    assert sums["targets"][:, 1].tolist() == [
        sum(row[i] for row, label in zip(rows, labels.tolist(), strict=True) if label == 1)
        for i in range(width)
    ]
    assert sums["counts"].tolist() == torch.bincount(labels, minlength=CLASSES).tolist()


def test_the_largest_products_are_exact() -> None:
    """2^20 rows of ones: a sum of 2^52, and in int64 more of them."""
    ones = torch.full((1 << 14, 2), float(UNIT), dtype=torch.float64)
    sums = sums_of([ones], torch.zeros(1 << 14, dtype=torch.int64), 1)
    assert sums["products"].tolist() == [1 << 46] * 3
    assert added(sums, sums)["products"].tolist() == [1 << 47] * 3


def masked_with(key: bytes) -> tuple[Sums, Sums, Sums]:
    shapes = exact_sums.shapes(WIDTH + 1, CLASSES)
    count = sum(int(np.prod(shape)) for shape in shapes.values())
    mask = exact_sums.mask_of(hashlib.shake_256(key).digest(8 * count), shapes)
    sums = total([torch.arange(200)])
    return sums, mask, added(mask, sums)


def test_a_mask_hides_the_sums_and_comes_off_again() -> None:
    sums, mask, masked = masked_with(b"key")
    assert digest_of(exact_sums.without(masked, mask)) == digest_of(sums)
    words = masked["products"].numpy().view(np.uint64)
    top = np.bincount(words >> np.uint64(60), minlength=16)
    assert top.min() > 0, "all of the 64 bits are random, also the highest"
    with pytest.raises(BundleError, match="inconsistent") as caught:
        check(exact_sums.without(masked, masked_with(b"another")[1]))
    assert caught.value.hint


@pytest.mark.parametrize("name", ["products", "targets", "counts"])
def test_sums_that_cannot_be_are_refused(name: str) -> None:
    sums = dict(total([torch.arange(200)]))
    check(sums)
    sums[name] = -sums[name]
    with pytest.raises(BundleError, match="E-BUNDLE-FORMAT"):
        check(sums)


def test_the_smallest_integer_is_no_sum() -> None:
    """It is its own negative; times the unit it is 0, so the other classes can make up for it."""
    sums = dict(total([torch.arange(200)]))
    targets = sums["targets"].clone()
    targets[0, 1] += targets[0, 0]
    targets[0, 0] = torch.iinfo(torch.int64).min
    with pytest.raises(BundleError, match="E-BUNDLE-FORMAT"):
        check(sums | {"targets": targets})


@pytest.mark.parametrize("gamma", [0.01, 1.0, 30.0])
def test_the_solution_is_ridge_regression(gamma: float) -> None:
    z, labels = inputs()
    ridge = Ridge.of(sums_of([z], labels, CLASSES))
    design, wanted = z.numpy() / UNIT, np.eye(CLASSES)[labels.numpy()]
    square = design.T @ design + gamma * np.eye(WIDTH + 1)
    expected = np.linalg.solve(square, design.T @ wanted)
    assert np.allclose(ridge.solve(gamma).numpy(), expected, atol=1e-10)
    hat = design @ np.linalg.solve(square, design.T)
    residual = np.square(wanted - hat @ wanted).sum() / 200
    assert np.isclose(ridge.error(gamma), residual / (1 - np.trace(hat) / 200) ** 2)


def test_too_many_samples_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_sums, "MAX_SAMPLES", 199)
    with pytest.raises(TrainingError, match="at most 199 samples"):
        sums_of([inputs()[0]], inputs()[1], CLASSES)
