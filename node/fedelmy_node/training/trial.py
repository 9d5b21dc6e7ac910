"""Train a few batches as a test: does the model fit into memory, and how long does a batch take?

The first batch allocates and compiles, so only the others are timed. The regulariser is omitted: it
costs little compared to a backward pass. The result is discarded.
"""

from __future__ import annotations

import os
import resource
import time
from itertools import islice
from statistics import median
from typing import Any, Final

import torch

from fedelmy_node.domain.errors import TrainingError
from fedelmy_node.training.batches import Batches, eval_batches
from fedelmy_node.training.data.site_data import SiteData
from fedelmy_node.training.gradient import Objective
from fedelmy_node.training.job import Job
from fedelmy_node.training.loss import Loss
from fedelmy_node.training.models.builder import build_model
from fedelmy_node.training.models.trainable import frozen_names
from fedelmy_node.training.optimizer import optimizer_for
from fedelmy_node.training.seeds import derive
from fedelmy_node.training.torch_runtime import acceleration
from fedelmy_node.training.weights import FlatModel

_BATCHES: Final = 6
_MAX_SECONDS: Final = 5.0
"""No further batch is started after this time."""


def trial(job: Job, data: SiteData, device: torch.device) -> dict[str, Any]:
    """Train a few batches; return the time per batch, batches per epoch, and memory used."""
    recipe, seed = job.recipe, job.recipe.seed
    try:
        module = build_model(recipe.model, recipe.task, derive(seed, "init")).to(device)
        model = FlatModel(module, frozen_names(module, recipe.model, recipe.task))
        wanted, training = recipe.task.input, recipe.training
        batches = Batches(data.train, wanted, training, run_seed=seed, device=device)
        seconds = _timed(model, batches, job, device)
        validation = _validation_seconds(model, data, job, device)
    except torch.OutOfMemoryError as error:
        size = recipe.training.batch_size
        message = f"a batch of {size} does not fit into the memory of {device}"
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
    training, began = job.recipe.training, time.monotonic()
    optimizer = optimizer_for(model, training)
    objective = Objective(
        model=model,
        loss=Loss(training, batches.labels, job.recipe.task.classes, device),
        training=training,
        speed=acceleration(device, fast=job.fast, batches=0, precision=training.precision),
    )
    model.module.train()
    seconds: list[float] = []
    epoch = 0
    while len(seconds) < _BATCHES:
        epoch += 1  # a small site has few batches: repeat them
        place = (job.site, job.visit, 0, epoch)
        before = time.monotonic()
        for images, labels in islice(batches.epoch(place), _BATCHES - len(seconds)):
            objective.gradient(images, labels, whole=len(labels), seed=0)
            optimizer.step()
            _wait_for(device)
            now = time.monotonic()
            seconds.append(now - before)
            before = now
            if now - began > _MAX_SECONDS:
                return seconds
    return seconds


def _validation_seconds(model: FlatModel, data: SiteData, job: Job, device: torch.device) -> float:
    """The estimated time for all validation data, from one large batch."""
    began, size = time.monotonic(), 0
    model.module.eval()
    with torch.inference_mode():
        batches = eval_batches(data.validation, job.recipe.task.input, device=device)
        for images, labels in islice(batches, 1):
            model.module(images)
            size = len(labels)
    _wait_for(device)
    return (time.monotonic() - began) * len(data.validation) / size if size else 0.0


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _memory(device: torch.device) -> dict[str, int]:
    """Total memory and peak use of the device; for a CPU, of the whole process."""
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        return {"memory_bytes": total, "peak_bytes": torch.cuda.max_memory_reserved(device)}
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"memory_bytes": total, "peak_bytes": peak}
