"""Our Adam is torch's, bit by bit, without what torch's imports."""

from __future__ import annotations

import subprocess
import sys

import torch

from fedelmy_node.domain.federation import Training
from fedelmy_node.training.optimizer import Adam
from fedelmy_node.training.weights import FlatModel
from tests.support.small_recipes import net

TRAINING = Training(epochs=1, learning_rate=0.01, weight_decay=0.1)


def test_it_gives_the_bytes_of_torch_optim():
    ours, theirs = FlatModel(net()), FlatModel(net())
    parameter = torch.nn.Parameter(theirs.theta)
    parameter.grad = theirs.grad
    reference = torch.optim.Adam([parameter], lr=0.01, weight_decay=0.1, fused=True)
    adam = Adam(ours, TRAINING)
    for seed in range(5):
        gradient = torch.randn(ours.grad.shape, generator=torch.Generator().manual_seed(seed))
        for model, optimizer in ((ours, adam), (theirs, reference)):
            model.grad.copy_(gradient)
            optimizer.step()
    assert torch.equal(ours.theta, theirs.theta)
    assert all(
        torch.equal(adam.state[name], reference.state[parameter][name]) for name in adam.state
    )


def test_it_goes_on_from_a_state():
    one, other = FlatModel(net()), FlatModel(net())
    first, second = Adam(one, TRAINING), Adam(other, TRAINING)
    one.grad.fill_(0.5)
    other.grad.fill_(0.5)
    first.step()
    second.restore({name: tensor.clone() for name, tensor in first.state.items()})
    other.theta.copy_(one.theta)
    first.step()
    second.step()
    assert torch.equal(one.theta, other.theta)


def test_a_step_that_overflowed_is_none():
    model = FlatModel(net())
    before, adam = model.theta.clone(), Adam(model, TRAINING)
    model.grad.fill_(float("inf"))
    adam.step(grad_scale=torch.tensor(8.0), found_inf=torch.tensor(1.0))
    assert torch.equal(model.theta, before) and adam.state["step"] == 0


def test_torchs_compiler_is_not_imported():
    """It costs a trainer two seconds."""
    code = (
        "import sys, torch; from torch import nn; from fedelmy_node.domain.federation import Training;"
        "from fedelmy_node.training.optimizer import Adam; from fedelmy_node.training.weights import FlatModel;"
        "Adam(FlatModel(nn.Linear(2, 2)), Training(epochs=1)).step(); print('torch._dynamo' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )
