"""How much the diversity terms cost per batch: the closed form against plain autograd, in the same
run.

    python bench/regularizer.py [--json] [--repeats N] [--threads N]

Both compute -alpha d1 + beta d2 with log scaling, and its gradient, for the parameters of ResNet-18
(CIFAR stem: 11,173,962). The reference is what research code usually does: for every model of the
pool the norm of the differences, parameter tensor by parameter tensor, then backward(). The forward
and backward pass of the model itself is in neither.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedelmy_node.domain.federation import InputFormat, ModelSpec, Task
from fedelmy_node.training.averaging import mean_weights
from fedelmy_node.training.models import build
from fedelmy_node.training.regularisers import Distance, Terms, log_divisor, pool_regulariser
from fedelmy_node.training.weights import FlatModel, Weights

POOLS = (1, 6, 50)
"""Models in the pool; the paper's default ends at 6. 50 needs 6 GB of memory."""
LOSS = 0.7


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    task = Task(classes=tuple("0123456789"), input=InputFormat(height=32, width=32, channels=3))
    model = FlatModel(build(ModelSpec(name="resnet18-cifar"), task, 1))
    distances: tuple[Distance, ...] = ("l2", "squared_l2")
    rows = [
        measure(model, distance, pool, options.repeats) for distance in distances for pool in POOLS
    ]
    show(rows)
    if options.json:
        print(json.dumps({"bench": "regularizer", "parameters": model.parameters, "rows": rows}))


def measure(model: FlatModel, distance: Distance, size: int, repeats: int) -> dict[str, Any]:
    """Milliseconds per batch of both ways, and how far their gradients are apart."""
    terms = Terms(alpha=0.06, beta=1.0, distance=distance, compat="paper")
    pool, loss = make_pool(model, size), torch.tensor(LOSS)
    ours, gradient = closed_form(model, terms, pool, loss, repeats)
    shapes = [parameter.shape for parameter in model.module.parameters()]
    parameters = [part.clone().requires_grad_() for part in split(model.theta, shapes)]
    members = [split(vector, shapes) for vector in pool]
    autograd = milliseconds(lambda: by_autograd(parameters, members, terms, loss), repeats)
    reference = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
    return {
        "distance": distance,
        "pool": size,
        "ours_ms": ours,
        "autograd_ms": autograd,
        "ratio": round(autograd / ours, 1),
        "difference": float((gradient - reference).norm() / reference.norm()),
    }


def closed_form(
    model: FlatModel, terms: Terms, pool: list[Tensor], loss: Tensor, repeats: int
) -> tuple[float, Tensor]:
    start = mean_weights([Weights(vector=vector, rest={}) for vector in pool]).vector
    regulariser = pool_regulariser(terms, pool, start)
    assert regulariser is not None
    taken = milliseconds(lambda: regulariser.add_gradient(model.theta, model.grad, loss), repeats)
    model.grad.zero_()
    regulariser.add_gradient(model.theta, model.grad, loss)
    return taken, model.grad[: model.parameters].clone()


def make_pool(model: FlatModel, size: int) -> list[Tensor]:
    """Models as far from each other as training takes them."""
    noise = torch.randn(model.parameters, generator=torch.Generator().manual_seed(0)) * 0.003
    pool = [model.theta.clone() for _ in range(size)]
    for number, vector in enumerate(pool):
        vector[: model.parameters] += noise.roll(1000 * number)
    return pool


def split(vector: Tensor, shapes: list[torch.Size]) -> list[Tensor]:
    sizes = [shape.numel() for shape in shapes]
    parts = torch.split(vector[: sum(sizes)], sizes)
    return [part.detach().view(shape) for part, shape in zip(parts, shapes, strict=True)]


def by_autograd(
    parameters: list[Tensor], members: list[list[Tensor]], terms: Terms, loss: Tensor
) -> None:
    """Both terms as a sum over parameter tensors, differentiated by autograd."""
    apart = []
    for member in members:
        square = sum(
            (p - other).square().sum() for p, other in zip(parameters, member, strict=True)
        )
        assert isinstance(square, Tensor)
        apart.append(square if terms.distance == "squared_l2" else square.sqrt())
    d1, d2 = torch.stack(apart).mean(), apart[0]
    total = -terms.alpha * d1 / log_divisor(d1.detach(), loss) + terms.beta * d2 / log_divisor(
        d2.detach(), loss
    )
    for parameter in parameters:
        parameter.grad = None
    torch.autograd.backward(total)


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """The fastest of some runs after one that warms up: other processes only ever add."""
    work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return round(min(times) * 1000, 2)


def show(rows: list[dict[str, Any]]) -> None:
    print(
        f"{'distance':12} {'pool':>4} {'ours ms':>9} {'autograd ms':>12} {'ratio':>7} {'difference':>11}"
    )
    for row in rows:
        numbers = f"{row['ours_ms']:>9} {row['autograd_ms']:>12} {row['ratio']:>7} {row['difference']:>11.0e}"
        print(f"{row['distance']:12} {row['pool']:>4} {numbers}")


if __name__ == "__main__":
    main()
