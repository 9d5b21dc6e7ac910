"""What the head of a model receives, computed once per sample: its features.

`head_bench` trains a head on them, instead of computing them in every epoch: if only the head is
trained, by one process, without augmentation. `Context.features` gives them to an operation.

The last bits of a sample's features can depend on its batch. So they are computed in batches of one size, the last one padded,
in an order that follows from the samples alone; then neither the split nor the cache changes them.
`feature_cache.py` keeps them between steps and runs.
"""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

import torch
from torch import Tensor, nn

from fedelmy_node import __version__
from fedelmy_node.config.decode import canonical_json
from fedelmy_node.config.registry import TIMM, is_code
from fedelmy_node.domain.federation import InputFormat
from fedelmy_node.training import models
from fedelmy_node.training.batches import eval_batches
from fedelmy_node.training.data.samples import Samples
from fedelmy_node.training.data.site_data import SiteData
from fedelmy_node.training.feature_cache import FeatureCache
from fedelmy_node.training.job import Job
from fedelmy_node.training.models.recipe_model import feature_width, input_shape
from fedelmy_node.training.torch_runtime import Acceleration
from fedelmy_node.training.weights import FlatModel

logger = logging.getLogger(__name__)

BATCH: Final = 64
"""Samples per forward pass: part of the result, so never change it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HeadBench:
    """The head as a model of its own; its `Weights` are those of the whole model."""

    model: FlatModel
    train: Samples
    validation: Samples
    input: InputFormat


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Features:
    """What the head receives, and the labels, of all samples that are not test samples."""

    values: Tensor
    """Float32, a row per sample."""
    labels: Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Head:
    path: str
    module: nn.Module
    shape: tuple[int, ...]
    """Shape of the features of one sample."""


def site_features(
    model: FlatModel, path: str, job: Job, data: SiteData, speed: Acceleration
) -> Features:
    """Compute the features of the site's samples with a model whose head is at this path."""
    spec = job.recipe.model
    width = feature_width(model.module, path, spec, job.recipe.task.input)
    head = _Head(path=path, module=model.module.get_submodule(path), shape=(width,))
    values = _features(model, head, _parts(data), job, speed)
    labels = torch.cat([data.train.labels, data.validation.labels])
    return Features(values=values[: len(labels)], labels=labels)


def head_bench(model: FlatModel, job: Job, data: SiteData, speed: Acceleration) -> HeadBench | None:
    """Replace model and samples by head and features; None if the recipe does not permit it."""
    recipe = job.recipe
    if recipe.model.train != "head" or recipe.training.augment or job.processes > 1 or model.rest:
        return None
    head = _find_head(model, recipe.task.input)
    if head is None:
        return None
    features = _features(model, head, _parts(data), job, speed)
    width = features.shape[1]
    trained, validated = len(data.train), len(data.train) + len(data.validation)
    images = features.view(-1, 1, 1, width)
    module = nn.Sequential(nn.Flatten(), nn.Unflatten(1, head.shape), copy.deepcopy(head.module))
    return HeadBench(
        model=FlatModel(module),
        train=Samples(images=images[:trained], labels=data.train.labels),
        validation=Samples(images=images[trained:validated], labels=data.validation.labels),
        input=InputFormat(height=1, width=width, channels=1, kind="vector"),
    )


def _parts(data: SiteData) -> list[Samples]:
    """All samples of the source but its own test set: the same ones, however they are split."""
    return [data.train, data.validation, *(() if data.own_test else (data.test,))]


def _find_head(model: FlatModel, wanted: InputFormat) -> _Head | None:
    """The largest part with exactly the trained tensors, if its output is the model's."""
    trained = model.state_dict().keys()
    names = model.module.state_dict().keys()
    for path, part in model.module.named_modules():
        own = {name for name in names if name.startswith(f"{path}.")}
        if path and own == trained:
            shape = input_shape(model.module, part, wanted)
            return _Head(path=path, module=part, shape=shape) if shape else None
    return None


def _features(
    model: FlatModel, head: _Head, parts: Sequence[Samples], job: Job, speed: Acceleration
) -> Tensor:
    """The features of all parts, one after the other; from the cache if it has them."""
    digests = [_digest(image) for part in parts for image in part.images]
    # Equal samples have equal features, so their order does not matter.
    order = sorted(range(len(digests)), key=digests.__getitem__)
    place = torch.empty(len(order), dtype=torch.int64)
    place[torch.tensor(order, dtype=torch.int64)] = torch.arange(len(order))
    cache = None if job.feature_cache is None else FeatureCache(job.feature_cache)
    if is_code(job.recipe.model.name) or job.recipe.model.weights is None:
        cache = None  # code has no version, and without weights there is little to compute
    key = _key(job, head, sorted(digests), model.theta.device, speed)
    found = cache.read(key) if cache else None
    if found is None or len(found) != len(order):
        found = _computed(model, head, parts, order, job.recipe.task.input, speed)
        if cache:
            cache.write(key, found)
    return found[place]


def _computed(
    model: FlatModel,
    head: _Head,
    parts: Sequence[Samples],
    order: Sequence[int],
    wanted: InputFormat,
    speed: Acceleration,
) -> Tensor:
    logger.info("computing the features of %d samples with the frozen model", len(order))
    where = [(part, row) for part in parts for row in range(len(part))]
    device, rows = model.theta.device, []
    seen: list[Tensor] = []
    with ExitStack() as stack:
        hook = head.module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        stack.callback(hook.remove)
        stack.callback(model.module.train)
        stack.enter_context(torch.inference_mode())
        stack.enter_context(speed.computing())
        model.module.eval()
        for begin in range(0, len(order), BATCH):
            chosen = [where[position] for position in order[begin : begin + BATCH]]
            padded = [*chosen, *[chosen[-1]] * (BATCH - len(chosen))]
            images = torch.stack([part.images[row] for part, row in padded])
            batch = Samples(images=images, labels=torch.zeros(BATCH, dtype=torch.int64))
            for tensor, _ in eval_batches(batch, wanted, device=device, batch_size=BATCH):
                model.module(tensor)
            rows.append(seen.pop()[: len(chosen)].flatten(1).float().cpu())
    return torch.cat(rows).clone()


def _key(
    job: Job, head: _Head, digests: Sequence[bytes], device: torch.device, speed: Acceleration
) -> str:
    """Equal only for features with equal bits."""
    name, weights = job.recipe.model.name, job.recipe.model.weights
    packages = ["torchvision", *(["timm"] if name.startswith(TIMM) else [])]
    what = {
        "samples": hashlib.sha256(b"".join(digests)).hexdigest(),
        "input": job.recipe.task.input,
        "model": name,
        "origin": models.INSTALLED.origin(name),
        "weights": weights.sha256 if weights else "",
        "head": [head.path, *head.shape],
        "batch": BATCH,
        "threads": job.recipe.training.threads,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "speed": [str(speed.dtype), speed.compiled],
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "versions": [__version__, torch.__version__, *map(version, packages)],
    }
    return hashlib.sha256(canonical_json(what)).hexdigest()


def _digest(image: Tensor) -> bytes:
    return hashlib.sha256(image.contiguous().numpy().data).digest()
