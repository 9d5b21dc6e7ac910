"""FedELMY from given data, initial weights and batch order, to compare with another implementation.

    python -m bench.parity [--setting FILE] [--alpha A] [--beta B] [--reference FILE] [--json]
    [--data SOURCE] [--model NAME] [--sites N] [--images N] [--epochs N] ... [--float64] [--free]

A setting is one NumPy archive that any program can read: images, the samples of every site, the
initial weights, and the order of the samples in every epoch of every pool member. With `--setting`
it is read; if there is no such file, it is made from the other options and written. Then the chain
is trained with the strategy `fedelmy` (`compat = "authors"`, `distance = "squared_l2"`), without
augmentation, and the loss of every batch is kept.

`--reference` compares these losses with those of the other implementation: a JSON object with
`alpha`, `beta` and `losses`, an object of lists; its keys are SITE/MEMBER, from 1, member 0 is the
warm-up. `--float64` computes in double precision: what then still differs is not a rounding error.
`--free` ignores the given order: this project's own order, crop and flip.

The archive, with S a site from 1, M a pool member from 0:

    recipe            JSON: model, sites, pool_size, warmup_epochs, epochs, batch_size, ...
    classes           their names
    images, labels    (N, 32, 32, 3) uint8, (N,) class numbers
    test_images, test_labels
    initial_0, ...    the parameters in the order of the layers, each weight before its bias
    train_S, validation_S    positions in images
    order_S_M         (epochs, size of train_S): positions in train_S
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedelmy_launcher.simulate.partition import partition
from fedelmy_node.domain.federation import InputFormat, ModelSpec, Task, Training
from fedelmy_node.domain.names import SiteName
from fedelmy_node.domain.step_traits import MODEL
from fedelmy_node.training.batches import Batches, Place, eval_batches
from fedelmy_node.training.context import Artifact, Context
from fedelmy_node.training.data import parse_source
from fedelmy_node.training.data.samples import Samples, read_samples
from fedelmy_node.training.data.site_data import split_sizes
from fedelmy_node.training.data.sources import RawSamples, load_source
from fedelmy_node.training.distributed import ALONE
from fedelmy_node.training.epoch_counter import Progress
from fedelmy_node.training.evaluation.scoring import evaluate
from fedelmy_node.training.fit import Bench, Best, FitOrder, FitState, fit
from fedelmy_node.training.loading import set_determinism
from fedelmy_node.training.loss import BatchTerm, Loss
from fedelmy_node.training.models import build
from fedelmy_node.training.regularisers import Regulariser
from fedelmy_node.training.strategies import fedelmy
from fedelmy_node.training.torch_runtime import keep_freed_memory
from fedelmy_node.training.weights import FlatModel, Weights

INPUT: Final = InputFormat(height=32, width=32, channels=3)
CPU: Final = torch.device("cpu")
COMPARED: Final = 50
"""The first losses of a member."""
TOLERANCE: Final = 1e-5
Arrays = Mapping[str, NDArray[Any]]
Losses = dict[str, list[float]]
"""By SITE/MEMBER."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What the arrays of a setting do not say."""

    data: str = "digits"
    model: str = "cnn-pacs"
    sites: int = 2
    images: int = 1000
    test_images: int = 10_000
    """At most, if the data have test images of their own."""
    skew: float = 0.5
    """The alpha of Dir(alpha)."""
    seed: int = 1
    pool_size: int = 2
    warmup_epochs: int = 1
    epochs: int = 2
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4

    def epochs_of(self, member: int) -> int:
        return self.epochs if member else self.warmup_epochs


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Setting:
    """A setting file in memory."""

    recipe: Recipe
    arrays: Arrays

    def samples(self, part: str, dtype: torch.dtype) -> Samples:
        """The samples of `train_S` or `validation_S`, or the test samples."""
        chosen = self.arrays.get(part, slice(None))
        prefix = "test_" if part == "test" else ""
        images = torch.from_numpy(self.arrays[f"{prefix}images"][chosen]).permute(0, 3, 1, 2)
        if dtype == torch.float64:  # as floats, because bytes would become float32
            images = images.to(dtype) / 255
        labels = torch.from_numpy(self.arrays[f"{prefix}labels"][chosen])
        return Samples(images=images.contiguous(), labels=labels)

    def model(self, dtype: torch.dtype) -> FlatModel:
        """A model with the initial weights."""
        module = build(ModelSpec(name=self.recipe.model), self.task, self.recipe.seed)
        for number, parameter in enumerate(module.parameters()):
            parameter.data.copy_(torch.from_numpy(self.arrays[f"initial_{number}"]))
        return FlatModel(module.to(dtype))

    @property
    def task(self) -> Task:
        return Task(classes=tuple(self.arrays["classes"].tolist()), input=INPUT)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--setting", type=Path, help="read this file, or write it")
    for name, default in asdict(Recipe()).items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=type(default), default=default, help="of a new setting")
    parser.add_argument("--alpha", type=float, default=1.0, help="weight of d1")
    parser.add_argument("--beta", type=float, default=1.0, help="weight of d2")
    parser.add_argument("--reference", type=Path, help="the other implementation's losses, JSON")
    parser.add_argument("--float64", action="store_true")
    parser.add_argument("--free", action="store_true", help="own batch order, with augmentation")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    options = parser.parse_args()
    asked: dict[str, Any] = {name: getattr(options, name) for name in asdict(Recipe())}
    setting = read_or_make(options.setting, Recipe(**asked))
    found = train_chain(
        setting,
        alpha=options.alpha,
        beta=options.beta,
        dtype=torch.float64 if options.float64 else torch.float32,
        threads=options.threads,
        free=options.free,
    )
    for key, losses in found["losses"].items():
        print(
            f"site/member {key}: {len(losses)} batches, losses {losses[0]:.6f} to {losses[-1]:.6f}"
        )
    print(f"test accuracy {found['accuracy']:.2%}")
    print(f"{found['wall_seconds']} s, {found['cpu_seconds']} s of CPU time")
    if options.reference:
        found["compared"] = compare(found, json.loads(options.reference.read_bytes()))
    if options.json:
        print(json.dumps({"bench": "parity", "recipe": asdict(setting.recipe), **found}))


# --- the setting


def read_or_make(path: Path | None, recipe: Recipe) -> Setting:
    if path is not None and path.exists():
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
        return Setting(recipe=Recipe(**json.loads(str(arrays["recipe"]))), arrays=arrays)
    setting = make(recipe)
    if path is not None:
        with path.open("xb") as file:
            np.savez(file, allow_pickle=False, **setting.arrays)
    return setting


def make(recipe: Recipe) -> Setting:
    """Partition the data and draw weights and orders. All of it goes into the file."""
    raw = load_source(parse_source(recipe.data))
    random = np.random.default_rng(recipe.seed)
    count = min(recipe.images, len(raw.pool.labels))
    parts = partition(
        raw.pool.labels,
        recipe.sites,
        method="dirichlet",
        alpha=recipe.skew,
        seed=recipe.seed,
        samples=count,
    )
    pool = pixels(raw.pool, np.concatenate(parts))
    arrays: dict[str, NDArray[Any]] = {"images": pool[0], "labels": pool[1]}
    ends = np.cumsum([0, *map(len, parts)])
    tests = []
    for site, (begin, end) in enumerate(pairwise(ends), 1):
        own = begin + random.permutation(end - begin)
        tested, validated, trained = split_sizes(len(own), own_test=raw.test is not None)
        tests.append(own[:tested])
        arrays[f"validation_{site}"] = own[tested : tested + validated]
        arrays[f"train_{site}"] = own[tested + validated :]
        for member in range(0 if site == 1 else 1, recipe.pool_size + 1):
            epochs = range(recipe.epochs_of(member))
            orders = [random.permutation(trained) for _ in epochs]
            arrays[f"order_{site}_{member}"] = np.array(orders).reshape(len(epochs), trained)
    if raw.test is None:
        apart = np.concatenate(tests)
        test = pool[0][apart], pool[1][apart]
    else:
        count = min(recipe.test_images, len(raw.test.labels))
        test = pixels(raw.test, random.permutation(len(raw.test.labels))[:count])
    arrays["test_images"], arrays["test_labels"] = test
    task = Task(classes=raw.classes, input=INPUT)
    module = build(ModelSpec(name=recipe.model), task, recipe.seed)
    weights = (parameter.detach().numpy() for parameter in module.parameters())
    arrays |= {f"initial_{number}": array for number, array in enumerate(weights)}
    arrays["recipe"] = np.array(json.dumps(asdict(recipe)))
    arrays["classes"] = np.array(raw.classes)
    return Setting(recipe=recipe, arrays=arrays)


def pixels(
    raw: RawSamples, positions: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images with the channels last, and labels."""
    classes = np.arange(raw.labels.max() + 1)
    samples, _ = read_samples(raw, positions, classes, INPUT, unreadable="refuse")
    return samples.images.permute(0, 2, 3, 1).numpy(), samples.labels.numpy()


# --- training


class GivenOrder(Batches):
    """Batches in the order of a setting."""

    def __init__(self, arrays: Arrays, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._arrays = arrays

    def order(self, place: Place) -> Tensor:
        site, _, member, epoch = place
        return torch.from_numpy(self._arrays[f"order_{site}_{member}"][int(epoch) - 1])


class Recorder:
    """Keeps the loss of every batch of a fit."""

    def __init__(self, losses: list[float]) -> None:
        self._losses = losses
        self._before = 0.0, 0

    def begin(self, order: FitOrder, state: FitState) -> None:
        """Nothing to restore."""

    def after_batch(self, order: FitOrder, state: FitState) -> None:
        """The sums of the epoch so far have grown by this batch."""
        (total, count), now = self._before, (float(state.sums[0]), state.samples)
        self._losses.append((now[0] - total) / (now[1] - count))
        self._before = now

    def after_epoch(self, order: FitOrder, state: FitState) -> None:
        """The sums begin at zero again."""
        self._before = 0.0, 0


def train_chain(
    setting: Setting, *, alpha: float, beta: float, dtype: torch.dtype, threads: int, free: bool
) -> dict[str, Any]:
    """Train site by site, as a run does, and test the result."""
    recipe = setting.recipe
    training = Training(
        epochs=recipe.epochs,
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        batch_size=recipe.batch_size,
        augment=("crop", "flip") if free else (),
        threads=threads,
    )
    settings = fedelmy.Settings(
        pool_size=recipe.pool_size,
        warmup_epochs=recipe.warmup_epochs,
        alpha=alpha,
        beta=beta,
        distance="squared_l2",
        compat="authors",
    )
    keep_freed_memory()  # this and the next line: as in every trainer
    set_determinism(CPU, training, ALONE)
    wall, processor = time.perf_counter(), cpu_seconds()
    model = setting.model(dtype)
    initial, losses = model.weights(), Losses()
    received: list[Artifact] = []
    for site in range(1, recipe.sites + 1):
        bench = bench_of(setting, model, training, site, dtype, free=free)
        context = Context(
            model=model,
            initial=initial,
            inputs=received,
            reads=bench,
            fit_one=partial(recorded, losses),
        )
        outputs = fedelmy.train(context, settings)
        received = [Artifact(role=MODEL, groups={}, weights=outputs.model)]
    assert outputs.model is not None
    model.load(outputs.model)
    batches = eval_batches(setting.samples("test", dtype), INPUT, device=CPU)
    accuracy = evaluate(model.module, batches, setting.task.classes)["accuracy"]
    return {
        "alpha": alpha,
        "beta": beta,
        "accuracy": accuracy,
        "wall_seconds": round(time.perf_counter() - wall, 1),
        "cpu_seconds": round(cpu_seconds() - processor, 1),
        "losses": losses,
    }


def bench_of(
    setting: Setting,
    model: FlatModel,
    training: Training,
    site: int,
    dtype: torch.dtype,
    *,
    free: bool,
) -> Bench:
    """What the fits of one site share."""
    samples, seed = setting.samples(f"train_{site}", dtype), setting.recipe.seed
    kind = Batches if free else partial(GivenOrder, setting.arrays)
    return Bench(
        model=model,
        batches=kind(samples, INPUT, training, run_seed=seed, device=CPU),
        validation=setting.samples(f"validation_{site}", dtype),
        input=INPUT,
        training=training,
        loss=Loss(training, samples.labels, setting.task.classes, CPU),
        run_seed=seed,
        site=SiteName(str(site)),
        visit=1,
        emit=lambda *_: None,
        progress=Progress(),
    )


def recorded(
    losses: Losses,
    bench: Bench,
    order: FitOrder,
    start: Weights,
    regulariser: Regulariser | None,
    term: BatchTerm | None,
) -> Best:
    """`fit`, with the loss of every batch kept."""
    kept = losses.setdefault(f"{bench.site}/{order.member}", [])
    return fit(bench, order, start, regulariser, term, Recorder(kept))


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# --- the comparison


def compare(found: Mapping[str, Any], reference: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How far the first losses of every member are apart."""
    for weight in ("alpha", "beta"):
        if found[weight] != reference[weight]:
            raise SystemExit(f"{weight} is {reference[weight]} in the reference")
    rows = []
    print(f"{'site/member':>11} {'batches':>7} {'largest difference':>18} {'beyond 1e-5 from':>16}")
    for key, ours in found["losses"].items():
        pairs = zip(ours[:COMPARED], reference["losses"][key], strict=False)
        apart = [abs(one - other) for one, other in pairs]
        beyond = [number for number, far in enumerate(apart, 1) if not far <= TOLERANCE]
        row = {"member": key, "batches": len(apart), "largest": max(apart, default=0.0)}
        rows.append({**row, "beyond_from": min(beyond, default=None)})
        first = f"batch {beyond[0]}" if beyond else "-"
        print(f"{key:>11} {len(apart):>7} {row['largest']:>18.1e} {first:>16}")
    return rows


if __name__ == "__main__":
    main()
