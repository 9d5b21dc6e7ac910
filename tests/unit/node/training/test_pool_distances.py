"""The measures beside L2: what holds at distance zero; test_distances.py compares them with
autograd.
"""

from __future__ import annotations

import pytest
import torch

from fedelmy_node.training.regularisers import Proximal, Terms, pool_regulariser
from fedelmy_node.training.weights import BLOCK


@pytest.mark.parametrize("distance", ["l1", "cosine"])
def test_where_training_begins_nothing_pulls(distance):
    """The first member starts at m0 itself, where the measures have no direction."""
    start = torch.randn(BLOCK, generator=torch.Generator().manual_seed(1))
    terms = Terms(alpha=0.06, beta=1.0, distance=distance, compat="paper")
    grad = torch.zeros_like(start)
    told = pool_regulariser(terms, [start], start).add_gradient(start, grad, torch.tensor(2.0))
    assert told.tolist() == [0.0, 0.0]
    assert not grad.any()


def test_a_vector_of_zeros_has_no_direction():
    zeros = torch.zeros(BLOCK)
    terms = Terms(alpha=0.06, beta=1.0, distance="cosine", compat="paper")
    grad = torch.zeros(BLOCK)
    pool_regulariser(terms, [zeros], zeros).add_gradient(torch.ones(BLOCK), grad, torch.tensor(2.0))
    assert grad.isfinite().all()


def test_the_proximal_term_is_mu_times_the_way_from_the_anchor():
    anchor, theta = torch.zeros(BLOCK), torch.full((BLOCK,), 2.0)
    grad = torch.ones(BLOCK)
    told = Proximal(0.25, anchor).add_gradient(theta, grad, torch.tensor(2.0))
    assert torch.equal(grad, torch.full((BLOCK,), 1.5))
    assert told.tolist() == [128.0, 128.0]
