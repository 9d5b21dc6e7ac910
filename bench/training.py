"""Images per second of an epoch of FedELMY: this project's way against the usual one, in the same
run.

    python bench/training.py [--json] [--model NAME]... [--images N] [--repeats N] [--threads N]
    [--usual files|arrays] [--precision bfloat16]

Both train the same model on the same images with the same augmentation (crop, flip), batch size,
Adam and pool of three models, for one epoch of L = CE - alpha d1 + beta d2. The usual way: files
that PIL opens and transforms one by one in a DataLoader with workers, NCHW, torch's own Adam, and
the distances as sums over parameter tensors that autograd differentiates. `--usual arrays` spares
it the files: PIL images are made of arrays in memory, as torchvision does for CIFAR-10. Each has a
process of its own. The two take turns, and of each the fastest turn counts: others only ever add.
What happens once per step, such as decoding all files into memory, is given apart.

`distances` is the share of a step that the distances cost here. `of peak` compares what the model
computes (products and sums of its layers, forwards and backwards) with the speed at which this
machine multiplies large matrices: what is left up to 100 % is all that a faster way of training
could gain with the same arithmetic.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fedelmy_node.domain.federation import InputFormat, ModelSpec, Task, Training
from fedelmy_node.domain.names import SiteName
from fedelmy_node.training.averaging import mean_weights
from fedelmy_node.training.batches import Batches
from fedelmy_node.training.data.samples import Samples
from fedelmy_node.training.data.site_data import open_data
from fedelmy_node.training.epoch_counter import Progress
from fedelmy_node.training.fit import Bench, FitOrder, fit
from fedelmy_node.training.job import DataSpec
from fedelmy_node.training.loss import Loss
from fedelmy_node.training.models import build
from fedelmy_node.training.regularisers import Regulariser, Terms, log_divisor, pool_regulariser
from fedelmy_node.training.torch_runtime import acceleration, keep_freed_memory
from fedelmy_node.training.weights import FlatModel, Weights

TASK = Task(classes=tuple("0123456789"), input=InputFormat(height=32, width=32, channels=3))
TERMS = Terms(alpha=0.06, beta=1.0, distance="l2", compat="paper")
IMAGES = {"cnn": 2560, "resnet18-cifar": 384}
"""Of an epoch, unless --images says otherwise."""
POOL, BATCH, WORKERS = 3, 128, 2
Epoch = Callable[[], float]
"""Trains one epoch; gives its seconds."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    parser.add_argument("--model", action="append", choices=sorted(IMAGES), help="default: both")
    parser.add_argument(
        "--images", type=int, help="of an epoch; default: 2560 for cnn, 384 for resnet18-cifar"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--precision", choices=["float32", "bfloat16"], default="float32", help="of ours"
    )
    parser.add_argument("--usual", choices=["files", "arrays"], default="files")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    head = f"{'model':16} {'images':>6} {'ours/s':>8} {'usual/s':>8} {'ratio':>6} {'loading s':>9}"
    print(f"{head} {'distances':>9} {'of peak':>8}")
    rows = []
    for name in options.model or sorted(IMAGES):
        with tempfile.TemporaryDirectory() as folder:
            images = options.images or IMAGES[name]
            ours = partial(our_epoch, precision=options.precision)
            row = compare(name, images, Path(folder), options.usual, options.repeats, ours)
        rows.append(row)
        speeds = f"{row['ours']:>8.1f} {row['usual']:>8.1f} {row['ratio']:>6.2f}"
        shares = f"{row['distances']:>9.1%} {row['of_peak']:>8.0%}"
        print(f"{name:16} {row['images']:>6} {speeds} {row['loading_seconds']:>9.2f} {shares}")
    if options.json:
        print(
            json.dumps(
                {
                    "bench": "training",
                    "threads": options.threads,
                    "precision": options.precision,
                    "usual": options.usual,
                    "rows": rows,
                }
            )
        )


def compare(
    name: str,
    count: int,
    folder: Path,
    usual: Literal["files", "arrays"],
    repeats: int,
    ours: Callable[..., Epoch],
) -> dict[str, Any]:
    """Both ways for one model, in turns."""
    write_images(folder, count)
    began = time.perf_counter()
    data = open_data(DataSpec(source=f"imagefolder:{folder}"), TASK, seed=1, site=SiteName("bench"))
    loading = time.perf_counter() - began
    parts = (data.train, data.validation, data.test)
    everything = Samples(
        images=torch.cat([part.images for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
    )
    timer = Timed()
    keep_freed_memory()  # as every trainer does
    other = ProcessPoolExecutor(1, get_context("spawn"))  # which is as Python has it
    ways: dict[str, Epoch] = {
        "ours": ours(name, everything, timer),
        "usual": lambda: other.submit(
            usual_turn, name, folder, usual == "arrays", torch.get_num_threads()
        ).result(),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    shares, peaks = [], []
    for _ in range(repeats):
        peaks.append(peak())
        for way, epoch in ways.items():
            timer.seconds = 0.0
            seconds[way].append(epoch())
            if way == "ours":
                shares.append(timer.seconds / seconds[way][-1])
    other.shutdown()
    ours, theirs = (count / min(seconds[way]) for way in ways)
    return {
        "model": name,
        "images": count,
        "ours": round(ours, 1),
        "usual": round(theirs, 1),
        "ratio": round(ours / theirs, 2),
        "loading_seconds": round(loading, 2),
        "distances": round(min(shares), 4),
        "of_peak": round(ours * operations(name) / max(peaks), 3),
    }


def peak() -> float:
    """Operations per second of a product of large matrices."""
    one, other = torch.randn(2048, 2048), torch.randn(2048, 2048)
    one @ other  # the first one also wakes threads
    began = time.perf_counter()
    for _ in range(5):
        one @ other
    return 5 * 2 * 2048**3 / (time.perf_counter() - began)


def operations(name: str) -> float:
    """Of one image, forwards and backwards."""
    model = build(ModelSpec(name=name), TASK, 1)
    with FlopCounterMode(display=False) as counter:
        functional.cross_entropy(model(torch.randn(2, 3, 32, 32)), torch.tensor([0, 1])).backward()
    return counter.get_total_flops() / 2


def write_images(folder: Path, count: int) -> None:
    """JPEG files of something between a photograph and noise, one folder per class."""
    generator = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(generator.integers(0, 256, (8, 8, 3), np.uint8))
        place = folder / str(number % 10)
        place.mkdir(exist_ok=True)
        coarse.resize((32, 32), Image.Resampling.BICUBIC).save(place / f"{number}.jpg", quality=90)


# --- this project's way


class Timed:
    """A regulariser that counts what it costs."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.inner: Regulariser | None = None

    def add_gradient(self, theta: Tensor, grad: Tensor, loss: Tensor) -> Tensor:
        assert self.inner is not None
        began = time.perf_counter()
        distances = self.inner.add_gradient(theta, grad, loss)
        self.seconds += time.perf_counter() - began
        return distances


def our_epoch(
    name: str, samples: Samples, timer: Timed, precision: Literal["float32", "bfloat16"] = "float32"
) -> Epoch:
    model = FlatModel(build(ModelSpec(name=name), TASK, 1))
    pool = [
        Weights(vector=vector, rest=model.weights().rest)
        for vector in make_pool(model.theta, model.parameters)
    ]
    start = mean_weights(pool)
    timer.inner = pool_regulariser(TERMS, [member.vector for member in pool], start.vector)
    training = Training(
        epochs=1,
        batch_size=BATCH,
        augment=("crop", "flip"),
        threads=torch.get_num_threads(),
        precision=precision,
    )
    device = torch.device("cpu")
    bench = Bench(
        model=model,
        batches=Batches(samples, TASK.input, training, run_seed=1, device=device),
        validation=samples.part(0, 0),
        input=TASK.input,
        training=training,
        loss=Loss(training, samples.labels, TASK.classes, device),
        run_seed=1,
        site=SiteName("bench"),
        visit=1,
        emit=lambda *_: None,
        progress=Progress(),
        speed=acceleration(device, fast=True, batches=0, precision=precision),
    )

    def epoch() -> float:
        began = time.perf_counter()
        fit(bench, FitOrder(member=1, members=1, epochs=1), start, timer)
        return time.perf_counter() - began

    return epoch


def make_pool(theta: Tensor, parameters: int) -> list[Tensor]:
    """Models as far from each other as training takes them."""
    noise = torch.randn(parameters, generator=torch.Generator().manual_seed(0)) * 0.003
    pool = [theta.clone() for _ in range(POOL)]
    for number, vector in enumerate(pool):
        vector[:parameters] += noise.roll(1000 * number)
    return pool


# --- the usual way


class Arrays(Dataset[tuple[Any, int]]):
    """PIL images of arrays in memory."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        self._transform = transform
        self._samples = [
            (np.asarray(Image.open(path)), label)
            for path, label in ImageFolder(str(folder)).samples
        ]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        array, label = self._samples[index]
        return self._transform(Image.fromarray(array)), label


def usual_turn(name: str, folder: Path, arrays: bool, threads: int) -> float:
    """In the process that is for the usual way: what an epoch needs is made once."""
    torch.set_num_threads(threads)
    return usual_epoch(name, folder, arrays=arrays)()


@cache
def usual_epoch(name: str, folder: Path, *, arrays: bool) -> Epoch:
    change = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
        ]
    )
    images: Any = Arrays(folder, change) if arrays else ImageFolder(str(folder), change)
    loader: DataLoader[Any] = DataLoader(
        images, batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    torch.manual_seed(1)
    model = usual_cnn() if name == "cnn" else build(ModelSpec(name=name), TASK, 1)
    pool = [
        [p.detach() + 0.003 * torch.randn_like(p) for p in model.parameters()] for _ in range(POOL)
    ]
    list(loader)  # the workers start once, which is not this comparison's subject

    def epoch() -> float:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
        model.train()
        began, running = time.perf_counter(), 0.0
        for batch, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), labels)
            (loss + usual_terms(list(model.parameters()), pool, loss.detach())).backward()
            optimizer.step()
            running += loss.item()
        return time.perf_counter() - began

    return epoch


def usual_terms(
    parameters: Sequence[nn.Parameter], pool: Sequence[Sequence[Tensor]], loss: Tensor
) -> Tensor:
    apart = []
    for member in pool:
        square = sum(
            (p - other).square().sum() for p, other in zip(parameters, member, strict=True)
        )
        assert isinstance(square, Tensor)
        apart.append(square.sqrt())
    d1, d2 = torch.stack(apart).mean(), apart[0]
    return -TERMS.alpha * d1 / log_divisor(d1.detach(), loss) + TERMS.beta * d2 / log_divisor(
        d2.detach(), loss
    )


def usual_cnn() -> nn.Module:
    """The paper's, layer by layer as it is written down."""
    return nn.Sequential(
        nn.Conv2d(3, 128, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(128, 128, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(128, 128, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2048, 10),
    )


if __name__ == "__main__":
    main()
