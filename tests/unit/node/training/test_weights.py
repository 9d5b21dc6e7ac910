"""The pool's mean, and the vector that a model becomes."""

import pytest
import torch
from torch import nn

from fedelmy_node.domain.errors import BundleError, TrainingError
from fedelmy_node.training.averaging import Pool, mean_weights
from fedelmy_node.training.weights import BLOCK, FlatModel, Weights, distances_between


def weights(*values, count=0, running=0.0):
    return Weights(
        vector=torch.tensor(values),
        rest={"running": torch.tensor([running]), "count": torch.tensor(count)},
    )


def test_floats_are_averaged_and_integers_are_the_newest():
    pool = Pool(weights(1.0, 2.0, count=5, running=1.0))
    pool.append(weights(3.0, 4.0, count=9, running=2.0))
    mean = pool.mean()
    assert len(pool) == 2
    assert mean.vector.tolist() == [2, 3]
    assert mean.rest["running"].tolist() == [1.5]
    assert (mean.rest["count"].dtype, mean.rest["count"].item()) == (torch.int64, 9)


def test_sums_are_float64():
    """In float32, a million and a thousandth are a million."""
    members = [weights(1e6)] + [weights(-1e6)] + [weights(1e-3)] * 2
    assert mean_weights(
        [members[0], members[2], members[3], members[1]]
    ).vector.item() == pytest.approx(5e-4)


def test_a_large_mean_is_the_mean_of_every_piece():
    vectors = torch.randn(3, 256 * BLOCK + 17)
    mean = mean_weights([Weights(vector=vector, rest={}) for vector in vectors])
    assert torch.equal(mean.vector, (vectors.double().sum(dim=0) / 3).float())
    assert mean.vector.dtype == torch.float32


def test_distances_are_those_of_the_parameters():
    table = distances_between(
        [weights(0.0, 0.0, running=9.0), weights(3.0, 4.0), weights(0.0, 1.0)]
    )
    assert table == [[0, 5, 1], [5, 0, pytest.approx(18**0.5)], [1, pytest.approx(18**0.5), 0]]


def test_the_mean_is_nobodys_memory():
    only = weights(1.0, count=2)
    mean = Pool(only).mean()
    mean.vector.zero_()
    mean.rest["count"].zero_()
    assert only.vector.item() == 1
    assert only.rest["count"].item() == 2


class Tied(nn.Module):
    """Two names for one matrix, a buffer, and a frozen parameter."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(3, 3)
        self.decode = nn.Linear(3, 3)
        self.decode.weight = self.encode.weight
        self.norm = nn.BatchNorm1d(3)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x):
        return self.norm(self.decode(self.encode(x)))


def test_a_flat_model_computes_what_the_model_computed():
    torch.manual_seed(0)
    module, x = Tied().eval(), torch.randn(4, 3)
    before, names = module(x), list(module.state_dict())
    model = FlatModel(module)
    assert torch.equal(module(x), before)
    assert list(model.state_dict()) == names
    assert model.parameters == 9 + 3 + 3 + 6
    assert len(model.theta) == BLOCK
    assert not model.theta[model.parameters :].any()


def test_gradients_land_in_the_vector():
    torch.manual_seed(0)
    plain, module = Tied(), Tied()
    module.load_state_dict(plain.state_dict())
    model, x = FlatModel(module), torch.randn(4, 3)
    for each in (plain, module):
        each(x).square().sum().backward()
    wanted = torch.cat([p.grad.reshape(-1) for p in plain.parameters() if p.requires_grad])
    assert torch.equal(model.grad[: model.parameters], wanted)


def test_weights_come_and_go():
    model = FlatModel(Tied())
    saved = model.weights()
    model.theta.zero_()
    model.module.norm.num_batches_tracked += 3
    model.load(saved)
    assert torch.equal(model.theta, saved.vector)
    assert model.module.norm.num_batches_tracked.item() == 0
    assert set(saved.rest) == {
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
        "frozen",
    }


def test_a_state_of_another_model_is_refused():
    model = FlatModel(nn.Linear(2, 2))
    with pytest.raises(BundleError, match="E-BUNDLE-MANIFEST"):
        model.load_state_dict({"weight": torch.zeros(2, 2)})
    state = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    model.load_state_dict(state)
    assert torch.equal(
        model.theta[: model.parameters], torch.cat([state["weight"].view(-1), state["bias"]])
    )


def test_a_model_must_have_something_to_train():
    with pytest.raises(TrainingError, match="E-TRAINING-MODEL"):
        FlatModel(nn.ReLU())
