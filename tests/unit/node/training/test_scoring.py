"""Metrics against values worked out by hand and by scikit-learn."""

import json

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import nn

from fedelmy_node.training.evaluation.scoring import evaluate, score


def logits_for(predictions, classes):
    return torch.nn.functional.one_hot(torch.tensor(predictions), classes).float() * 4


def test_counts_by_hand():
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    result = score(logits_for([0, 0, 1, 1, 0, 2], 4), labels, ["a", "b", "c", "d"])
    assert (result["samples"], result["correct"]) == (6, 4)
    assert result["accuracy"] == pytest.approx(4 / 6, abs=1e-6)
    assert result["balanced_accuracy"] == pytest.approx((2 / 3 + 1 / 2 + 1) / 3, abs=1e-6)
    a, d = result["classes"]["a"], result["classes"]["d"]
    assert {key: a[key] for key in ("tp", "fn", "fp", "tn")} == {"tp": 2, "fn": 1, "fp": 1, "tn": 2}
    assert a["sensitivity"] == pytest.approx(2 / 3, abs=1e-6)
    assert a["specificity"] == pytest.approx(2 / 3, abs=1e-6)
    assert (d["sensitivity"], d["specificity"], d["auc"]) == (None, 1.0, None)


def test_agrees_with_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (200,), generator=generator)
    logits = torch.randn(200, 3, generator=generator) + nn.functional.one_hot(labels, 3)
    result = score(logits, labels, ["a", "b", "c"])
    wanted = roc_auc_score(
        labels.numpy(), logits.double().softmax(1).numpy(), multi_class="ovr", average="macro"
    )
    assert result["auc"] == pytest.approx(wanted, abs=1e-6)
    assert result["balanced_accuracy"] == pytest.approx(
        balanced_accuracy_score(labels.numpy(), logits.argmax(1).numpy()), abs=1e-6
    )
    assert result["loss"] == pytest.approx(
        nn.functional.cross_entropy(logits, labels).item(), rel=1e-5
    )


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        (torch.empty(0, 2), torch.empty(0, dtype=torch.int64)),
        (torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)),
        (torch.full((3, 2), float("nan")), torch.tensor([0, 1, 1])),
        (torch.full((3, 2), float("inf")), torch.tensor([0, 1, 1])),
    ],
)
def test_what_is_undefined_is_none_and_json_can_say_it(logits, labels):
    result = score(logits, labels, ["a", "b"])
    assert result["auc"] is None
    json.dumps(result, allow_nan=False)


def test_one_class_gives_no_balanced_accuracy():
    logits = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    one = score(logits, torch.tensor([0, 0]), ["a", "b", "c"])
    assert one["accuracy"] == 1 and one["classes"]["a"]["sensitivity"] == 1
    assert one["balanced_accuracy"] is None and one["auc"] is None
    two = score(logits, torch.tensor([0, 1]), ["a", "b", "c"])
    assert two["balanced_accuracy"] == 0.5


def test_evaluation_does_not_change_the_model():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 2), nn.Dropout(0.9))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batches = [
        (torch.rand(5, 1, 2, 2), torch.tensor([0, 1, 0, 1, 1])),
        (torch.rand(1, 1, 2, 2), torch.tensor([0])),
    ]
    results = [evaluate(model, batches, ["a", "b"]) for _ in range(2)]
    assert results[0] == results[1]
    assert results[0]["samples"] == 6
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("levels", [1, 2, 5, 1000])
def test_areas_agree_with_scikit_learn_with_and_without_ties(levels):
    generator = torch.Generator().manual_seed(levels)
    labels = torch.randint(0, 2, (300,), generator=generator)
    logits = torch.randint(0, levels, (300, 2), generator=generator).float()
    result = score(logits, labels, ["a", "b"])
    wanted = roc_auc_score(labels.numpy(), logits.double().softmax(1).numpy()[:, 1])
    assert result["classes"]["b"]["auc"] == pytest.approx(wanted, abs=1e-6)
