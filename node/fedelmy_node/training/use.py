"""What a site does with a result: export it, measure it, classify images with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import safetensors.torch
import torch
from torch import nn

from fedelmy_node.config.decode import canonical_json, decode
from fedelmy_node.domain.federation import Recipe
from fedelmy_node.domain.reports import ResultModel
from fedelmy_node.durable import replacing
from fedelmy_node.errors import DataError
from fedelmy_node.training.batches import eval_batches, normalised
from fedelmy_node.training.bundle import read_bundle
from fedelmy_node.training.data import parse_source
from fedelmy_node.training.data.convert import to_input, unit_float
from fedelmy_node.training.data.imagefile import read_image
from fedelmy_node.training.data.raw import load_source
from fedelmy_node.training.data.samples import Samples, read_samples
from fedelmy_node.training.data.site import class_numbers
from fedelmy_node.training.job import DataSpec, Job
from fedelmy_node.training.metrics import evaluate
from fedelmy_node.training.models import build
from fedelmy_node.training.step import MODEL_GROUP, load, run

__all__ = ["export_model", "evaluate_model", "predict_files"]


@dataclass(frozen=True, slots=True)
class _Usable:
    recipe: Recipe
    module: nn.Module


def export_model(found: ResultModel, out: Path) -> None:
    """A plain state dict, with all that is needed to build the model again in its metadata."""
    recipe = _recipe(found)
    state = read_bundle(Path(found.path))[MODEL_GROUP]
    description = {"model": recipe.model.name, "task": recipe.task, "run": found.run, "bundle_sha256": found.sha256}
    tensors = {name: tensor.contiguous().clone() for name, tensor in state.items()}
    with replacing(out, mode=0o644) as partial:
        safetensors.torch.save_file(tensors, partial, metadata={"fedelmy": canonical_json(description).decode()})


def evaluate_model(found: ResultModel, data: str | None) -> Mapping[str, Any]:
    """Counts and metrics on the site's own test data, or on everything in another source."""
    if data is not None:
        return _evaluate_all(found, data)
    if not found.data:
        raise DataError("E-DATA-SOURCE", "the node was started without data", hint="Name some with --data.")
    job = Job(
        kind="evaluate",
        site=found.site,
        visit=0,
        recipe=_recipe(found),
        data=DataSpec(
            source=found.data,
            indices=Path(found.indices) if found.indices else None,
            unreadable=cast(Literal["refuse", "skip"], found.unreadable),
        ),
    )
    return run(load(job), (Path(found.path),), lambda *_: None).report


def _evaluate_all(found: ResultModel, data: str) -> Mapping[str, Any]:
    usable = _usable(found)
    task = usable.recipe.task
    raw = load_source(parse_source(data))
    parts: list[Samples] = []
    for part in (raw.pool, raw.test):
        if part is not None:
            numbers = class_numbers(raw.classes, np.unique(part.labels), task.classes)
            everything = np.arange(len(part.labels))
            parts.append(read_samples(part, everything, numbers, task.input, unreadable="refuse")[0])
    batches = (batch for part in parts for batch in eval_batches(part, task.input, device=torch.device("cpu")))
    return evaluate(usable.module, batches, task.classes)


def predict_files(
    found: ResultModel, files: Sequence[Path], top: int
) -> Iterator[tuple[Path, list[tuple[str, float]]]]:
    """The likeliest classes of each image file, best first."""
    usable = _usable(found)
    task = usable.recipe.task
    for path in files:
        if not path.is_file():
            raise DataError("E-DATA-MISSING", f"{path} is not a file")
        image = to_input(read_image(path, str(path))[np.newaxis], task.input, str(path))
        with torch.inference_mode():
            logits = usable.module(normalised(unit_float(image), task.input))
        best = logits[0].double().softmax(dim=0).topk(min(top, len(task.classes)))
        names = [task.classes[index] for index in best.indices.tolist()]
        yield path, list(zip(names, best.values.tolist(), strict=True))


def _recipe(found: ResultModel) -> Recipe:
    return decode(Recipe, json.loads(found.recipe))


def _usable(found: ResultModel) -> _Usable:
    recipe = _recipe(found)
    module = build(recipe.model, recipe.task, seed=0)
    module.load_state_dict(read_bundle(Path(found.path))[MODEL_GROUP])
    return _Usable(recipe, module.eval())
