"""A few batches trained for nothing: does the model fit into the device, and how long does a batch take?

The first batch allocates and compiles, so the others are timed. The regulariser is left out: it works on one vector
and costs little beside a backward pass. Nothing of this is kept.
"""

from __future__ import annotations

import time
from itertools import islice
from statistics import median
from typing import Any, Final

import torch

from fedelmy_node.errors import TrainingError
from fedelmy_node.training.acceleration import acceleration
from fedelmy_node.training.adam import Adam
from fedelmy_node.training.batches import Batches, eval_batches
from fedelmy_node.training.data.site import SiteData
from fedelmy_node.training.flat import FlatModel
from fedelmy_node.training.job import Job
from fedelmy_node.training.loss import Loss
from fedelmy_node.training.models.build import build_model
from fedelmy_node.training.seeds import derive

__all__ = ["trial"]

_BATCHES: Final = 6
_ENOUGH_SECONDS: Final = 5.0
"""No more batches are begun after so long: a slow machine is known to be slow by then."""


def trial(job: Job, data: SiteData, device: torch.device) -> dict[str, Any]:
    """Train a few batches; how long one takes, how many an epoch has, and what memory it took."""
    recipe = job.recipe
    try:
        model = FlatModel(build_model(recipe.model, recipe.task, derive(recipe.seed, "init")).to(device))
        batches = Batches(data.train, recipe.task.input, recipe.training, run_seed=recipe.seed, device=device)
        seconds = _timed(model, batches, job, device)
        validation = _validation_seconds(model, data, job, device)
    except torch.OutOfMemoryError as error:
        message = f"a batch of {recipe.training.batch_size} does not fit into the memory of {device}"
        raise TrainingError("E-TRAINING-MEMORY", message, private=str(error)) from error
    except RuntimeError as error:
        message = "the model cannot be trained on this input: a batch failed"
        raise TrainingError("E-TRAINING-MODEL", message, private=str(error)) from error
    return {
        "seconds_per_batch": median(seconds[1:] or seconds),
        "batches": len(batches),
        "validation_seconds": validation,
        **_memory(device),
    }


def _timed(model: FlatModel, batches: Batches, job: Job, device: torch.device) -> list[float]:
    optimizer, began = Adam(model, job.recipe.training), time.monotonic()
    classes, speed = len(job.recipe.task.classes), acceleration(device, fast=job.fast, batches=0)
    loss = Loss(job.recipe.training.loss, batches.labels, classes, device)
    model.module.train(len(batches) > 1 or job.recipe.training.batch_size > 1)
    seconds: list[float] = []
    epoch = 0
    while len(seconds) < _BATCHES:
        epoch += 1  # a small site has few batches: they come again
        place = (job.site, job.visit, 0, epoch)
        before = time.monotonic()
        for images, labels in islice(batches.epoch(place), _BATCHES - len(seconds)):
            if len(labels) > 1:  # one sample has no statistics; `fit` knows what to do with it
                model.grad.zero_()
                with speed.computing():
                    value = loss(model.module(images), labels)
                value.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            _wait_for(device)
            now = time.monotonic()
            seconds.append(now - before)
            before = now
            if now - began > _ENOUGH_SECONDS:
                return seconds
    return seconds


def _validation_seconds(model: FlatModel, data: SiteData, job: Job, device: torch.device) -> float:
    """Of all validation data, from one large batch of them."""
    began, size = time.monotonic(), 0
    model.module.eval()
    with torch.inference_mode():
        for images, labels in islice(eval_batches(data.validation, job.recipe.task.input, device=device), 1):
            model.module(images)
            size = len(labels)
    _wait_for(device)
    return (time.monotonic() - began) * len(data.validation) / size if size else 0.0


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _memory(device: torch.device) -> dict[str, int]:
    """What the device has, and what the trial took at most; of a CPU, what the whole process took."""
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        return {"memory_bytes": total, "peak_bytes": torch.cuda.max_memory_reserved(device)}
    import os
    import resource

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"memory_bytes": total, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
