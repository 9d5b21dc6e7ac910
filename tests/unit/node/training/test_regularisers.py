"""The closed-form gradients against autograd, which is allowed to be slow."""

import math

import pytest
import torch

from fedelmy_node.training.regularisers import LOSS_FLOOR, Terms, log_divisor, pool_regulariser
from fedelmy_node.training.weights import BLOCK


def terms(**changes):
    return Terms(**{"alpha": 0.06, "beta": 1.0, "distance": "l2", "compat": "paper"} | changes)


def vectors(count, *, spread=1.0, blocks=2, dtype=torch.float64, seed=0):
    """Models as training makes them: close to each other compared with how far they are from zero."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(blocks * BLOCK, generator=generator, dtype=torch.float64) * 10
    steps = torch.randn(count, blocks * BLOCK, generator=generator, dtype=torch.float64) * spread
    return [(centre + step).to(dtype) for step in steps]


def mean(pool):
    return torch.stack(pool).mean(dim=0)


def expected(theta, pool, start, terms, loss):
    """The definition, by autograd: gradient and both distances."""
    theta = theta.clone().requires_grad_()
    measure = {
        "l2": lambda one, other: (one - other).square().sum().sqrt(),
        "squared_l2": lambda one, other: (one - other).square().sum(),
        "l1": lambda one, other: (one - other).abs().sum(),
        "cosine": lambda one, other: 1 - torch.cosine_similarity(one, other, dim=0),
    }[terms.distance]
    apart = [
        measure(theta, other) for other in ([*pool, start] if terms.compat == "authors" else pool)
    ]
    d1, d2 = torch.stack(apart).mean(), apart[0]
    divisor2 = definition_of_divisor(d2.item(), loss)
    divisor1 = divisor2 if terms.compat == "authors" else definition_of_divisor(d1.item(), loss)
    (-terms.alpha * d1 / divisor1 + terms.beta * d2 / divisor2).backward()
    return theta.grad, d1.item(), d2.item()


def definition_of_divisor(distance, loss):
    if distance == 0:
        return 1.0
    order, loss_order = (
        math.floor(math.log10(distance)),
        math.floor(math.log10(max(loss, LOSS_FLOOR))),
    )
    return 10.0 ** (order - loss_order + 1) if order > loss_order - 1 else 1.0


def computed(theta, pool, start, terms, loss):
    grad = torch.zeros_like(theta)
    d1, d2 = pool_regulariser(terms, pool, start).add_gradient(theta, grad, torch.tensor(loss))
    return grad, d1.item(), d2.item()


@pytest.mark.parametrize("size", [1, 3, 6])
@pytest.mark.parametrize("distance", ["l2", "squared_l2", "l1", "cosine"])
@pytest.mark.parametrize("compat", ["paper", "authors"])
@pytest.mark.parametrize("loss", [6.02, 0.037, 4e5])
def test_agrees_with_autograd(size, distance, compat, loss):
    *pool, theta = vectors(size + 1)
    chosen = terms(distance=distance, compat=compat)
    start = mean(pool)
    grad, d1, d2 = computed(theta, pool, start, chosen, loss)
    wanted, wanted_d1, wanted_d2 = expected(theta, pool, start, chosen, loss)
    assert torch.allclose(grad, wanted, rtol=1e-9, atol=1e-9 * wanted.abs().max().item())
    assert (d1, d2) == pytest.approx((wanted_d1, wanted_d2), rel=1e-9)


def test_adds_to_the_gradient_that_is_there():
    *pool, theta = vectors(4)
    regulariser = pool_regulariser(terms(), pool, mean(pool))
    alone, both = torch.zeros_like(theta), torch.ones_like(theta)
    regulariser.add_gradient(theta, alone, torch.tensor(1.0))
    regulariser.add_gradient(theta, both, torch.tensor(1.0))
    assert torch.allclose(both, alone + 1, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("alpha", "beta"), [(0.1, 0.0), (0.0, 0.1), (0.1, 0.2)])
def test_by_gradient_the_terms_have_a_share_of_the_mean_gradient(alpha, beta):
    *pool, theta = vectors(4)
    mean_gradient = vectors(1, seed=1)[0]
    chosen = terms(alpha=alpha, beta=beta, scaling="gradient")
    grad = torch.zeros_like(theta)
    for loss in (0.01, 10.0):  # its size does not matter
        grad.zero_()
        regulariser = pool_regulariser(chosen, pool, mean(pool))
        regulariser.add_gradient(theta, grad, torch.tensor(loss), mean_gradient)
        apart = [(theta - other) / (theta - other).norm() for other in pool]
        wanted = (beta * apart[0] - alpha * mean(apart)) * mean_gradient.norm()
        assert torch.allclose(grad, wanted, rtol=1e-9, atol=1e-9 * wanted.abs().max().item())


@pytest.mark.parametrize(
    ("distance", "loss", "scaled"),
    [(45, 6.02, 0.45), (0.3, 6.02, 0.3), (5, 0.02, 0.0005 * 10), (1000, 1.0, 0.1), (0.1, 1.0, 0.1)],
)
def test_scaling_brings_a_distance_one_order_below_the_loss_and_never_up(distance, loss, scaled):
    divisor = log_divisor(torch.tensor(float(distance), dtype=torch.float64), torch.tensor(loss))
    assert distance / divisor.item() == pytest.approx(scaled)


def test_scaling_survives_zero():
    assert log_divisor(torch.tensor(0.0), torch.tensor(2.0)).item() == 1
    assert math.isfinite(log_divisor(torch.tensor(3.0), torch.tensor(0.0)).item())


@pytest.mark.parametrize("distance", ["l2", "squared_l2"])
def test_for_the_first_member_only_beta_minus_alpha_acts(distance):
    first, theta = vectors(2)
    grad, d1, d2 = computed(
        theta, [first], first, terms(alpha=0.4, beta=1.0, distance=distance), 1.0
    )
    same, _, _ = computed(theta, [first], first, terms(alpha=0.0, beta=0.6, distance=distance), 1.0)
    assert d1 == d2
    assert torch.allclose(grad, same, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("distance", ["l2", "squared_l2"])
@pytest.mark.parametrize("compat", ["paper", "authors"])
def test_no_nan_at_distance_zero(dtype, distance, compat):
    first, second = vectors(2, dtype=dtype)
    chosen = terms(distance=distance, compat=compat)
    grad, d1, d2 = computed(first, [first], first, chosen, 1.0)
    assert (d1, d2) == (0, 0)
    assert not grad.any()
    pool = [first, second]
    for theta in (first, second, mean(pool)):
        grad, d1, d2 = computed(theta, pool, mean(pool), chosen, 1.0)
        assert grad.isfinite().all()
        assert math.isfinite(d1 + d2)


def test_at_a_pool_member_only_the_others_push():
    pool = vectors(3, dtype=torch.float32)
    grad, _, _ = computed(pool[2], pool, mean(pool), terms(beta=0.0, alpha=1.0), 1e6)
    pushes = [(pool[2] - other) / (pool[2] - other).norm() for other in pool[:2]]
    assert torch.allclose(grad, -(pushes[0] + pushes[1]) / 3, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("distance", ["l2", "squared_l2"])
def test_float32_keeps_its_digits_on_a_large_model(distance):
    *pool, theta = vectors(4, spread=0.01, blocks=500, dtype=torch.float32)
    chosen = terms(distance=distance)
    _, d1, d2 = computed(theta, pool, mean(pool), chosen, 1.0)
    wide = [member.double() for member in pool]
    _, wanted_d1, wanted_d2 = expected(theta.double(), wide, mean(wide), chosen, 1.0)
    assert (d1, d2) == pytest.approx((wanted_d1, wanted_d2), rel=1e-6)


@pytest.mark.parametrize("distance", ["l2", "squared_l2"])
@pytest.mark.parametrize("compat", ["paper", "authors"])
def test_nothing_waits_for_the_device(distance, compat):
    """Tensors on the meta device have no values: whatever asked for one, such as .item(), would
    raise.
    """
    pool = [torch.zeros(BLOCK, device="meta") for _ in range(3)]
    regulariser = pool_regulariser(terms(distance=distance, compat=compat), pool, pool[0])
    result = regulariser.add_gradient(
        pool[1], torch.zeros_like(pool[0]), torch.zeros((), device="meta")
    )
    assert result.is_meta


def test_squared_distances_keep_one_row_whatever_the_pool():
    small, large = (
        pool_regulariser(
            terms(distance="squared_l2"), vectors(size, blocks=1), vectors(1, blocks=1)[0]
        )
        for size in (2, 9)
    )
    assert small._rows.shape == large._rows.shape


def test_switched_off_it_is_not_there():
    pool = vectors(2)
    assert pool_regulariser(terms(alpha=0.0, beta=0.0), pool, mean(pool)) is None
    for one in ({"alpha": 0.0}, {"beta": 0.0}):
        assert pool_regulariser(terms(**one), pool, mean(pool)) is not None
