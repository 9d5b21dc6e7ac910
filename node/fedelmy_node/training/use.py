"""What a site does with a result: export it, measure it, classify images with it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import safetensors.torch
import torch
from safetensors import safe_open
from torch import nn

from fedelmy_node.config.decode import canonical_json, decode
from fedelmy_node.config.strict_json import parse_json
from fedelmy_node.domain.federation import ModelSpec, Recipe, Task
from fedelmy_node.domain.reports import ResultModel
from fedelmy_node.durable import check_intact, replacing
from fedelmy_node.errors import BundleError, DataError
from fedelmy_node.training.arrivals import MODEL_GROUP
from fedelmy_node.training.batches import eval_batches, normalised
from fedelmy_node.training.bundle import Groups, read_bundle
from fedelmy_node.training.data import parse_source
from fedelmy_node.training.data.convert import to_input, unit_float
from fedelmy_node.training.data.imagefile import read_image
from fedelmy_node.training.data.raw import load_source
from fedelmy_node.training.data.samples import Samples, read_samples
from fedelmy_node.training.data.site import class_numbers
from fedelmy_node.training.job import DataSpec, Input, Job
from fedelmy_node.training.metrics import evaluate
from fedelmy_node.training.models import build
from fedelmy_node.training.step import load, run

__all__ = ["TrainedModel", "load_model", "export_model", "evaluate_model", "predict_files"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrainedModel:
    """A result, ready for use: the module in evaluation mode, and what its inputs and outputs mean."""

    module: nn.Module
    task: Task

    def predict(self, image: Path | str, top: int = 1) -> list[tuple[str, float]]:
        """The likeliest classes of an image file with their probabilities, best first."""
        path, wanted = Path(image), self.task.input
        if not path.is_file():
            raise DataError("E-DATA-MISSING", f"{path} is not a file", hint="Check the file's name.")
        pixels = to_input(read_image(path, str(path))[np.newaxis], wanted, str(path))
        with torch.inference_mode():
            logits = self.module(normalised(unit_float(pixels), wanted))
        best = logits[0].double().softmax(dim=0).topk(min(top, len(self.task.classes)))
        names = [self.task.classes[index] for index in best.indices.tolist()]
        return list(zip(names, best.values.tolist(), strict=True))


def load_model(file: Path | str, *, code: Collection[str] = ()) -> TrainedModel:
    """The model in a file that `fedelmy-node model export` wrote, for use in Python anywhere.

    A model that is a `module:function` is built only if `code` has its name: a file may name anything.
    """
    with safe_open(file, framework="pt") as opened:
        description = parse_json((opened.metadata() or {}).get("fedelmy", "null").encode())
    if description is None:
        raise BundleError("E-BUNDLE-FORMAT", f"{file} is not an exported model", hint="Make one with `model export`.")
    task = decode(Task, description["task"])
    return _trained(ModelSpec(name=description["model"]), task, safetensors.torch.load_file(file), code)


def export_model(found: ResultModel, out: Path) -> None:
    """A plain state dict, with all that is needed to build the model again in its metadata."""
    recipe = _recipe(found)
    state = _bundle(found)[MODEL_GROUP]
    description = {"model": recipe.model.name, "task": recipe.task, "run": found.run, "bundle_sha256": found.sha256}
    # Whatever floats travelled as, other software expects float32.
    floats = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    tensors = {name: tensor.contiguous().clone() for name, tensor in floats.items()}
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
        code=(_recipe(found).model.name,),  # this site agreed to it, or there would be no result
    )
    result = Input(Path(found.path), found.sha256)
    return run(load(job), (result,), lambda *_: None).report


def _evaluate_all(found: ResultModel, data: str) -> Mapping[str, Any]:
    trained = _result(found)
    task = trained.task
    raw = load_source(parse_source(data))
    parts: list[Samples] = []
    for part in (raw.pool, raw.test):
        if part is not None:
            numbers = class_numbers(raw.classes, np.unique(part.labels), task.classes)
            everything = np.arange(len(part.labels))
            parts.append(read_samples(part, everything, numbers, task.input, unreadable="refuse")[0])
    batches = (batch for part in parts for batch in eval_batches(part, task.input, device=torch.device("cpu")))
    return evaluate(trained.module, batches, task.classes)


def predict_files(
    found: ResultModel, files: Sequence[Path], top: int
) -> Iterator[tuple[Path, list[tuple[str, float]]]]:
    """The likeliest classes of each image file, best first."""
    trained = _result(found)
    for path in files:
        yield path, trained.predict(path, top)


def _recipe(found: ResultModel) -> Recipe:
    return decode(Recipe, json.loads(found.recipe))


def _bundle(found: ResultModel) -> Groups:
    """As the node has journaled it: the file may have been damaged since the node looked."""
    path = Path(found.path)
    check_intact(path, found.sha256, f"the result of run {found.run}")
    return read_bundle(path)


def _result(found: ResultModel) -> TrainedModel:
    recipe = _recipe(found)
    state = _bundle(found)[MODEL_GROUP]
    return _trained(recipe.model, recipe.task, state, (recipe.model.name,))


def _trained(model: ModelSpec, task: Task, state: Mapping[str, torch.Tensor], code: Collection[str]) -> TrainedModel:
    module = build(model, task, seed=0, code=code)
    module.load_state_dict(state)
    return TrainedModel(module=module.eval(), task=task)
