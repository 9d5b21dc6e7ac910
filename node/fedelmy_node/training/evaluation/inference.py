"""Use the result of a run: export it, evaluate it, classify images with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import safe_open
from torch import Tensor, nn

from fedelmy_node.config.decode import canonical_json, decode, parse_json
from fedelmy_node.domain.errors import BundleError, DataError
from fedelmy_node.domain.federation import InputFormat, ModelSpec, Recipe, StrategySpec, Task
from fedelmy_node.domain.reports import ResultModel
from fedelmy_node.domain.step_traits import DELIVER, EVALUATE, MODEL
from fedelmy_node.store.durable_files import check_intact, replacing
from fedelmy_node.training.batches import eval_batches, normalised
from fedelmy_node.training.bundle_file import Groups, is_model, read_bundle
from fedelmy_node.training.data import parse_source
from fedelmy_node.training.data.image_conversion import to_input, unit_float
from fedelmy_node.training.data.image_folder import SUFFIXES, image_values, read_image
from fedelmy_node.training.data.samples import read_samples
from fedelmy_node.training.data.site_data import class_numbers
from fedelmy_node.training.data.sources import load_source
from fedelmy_node.training.evaluation.result_models import one_model, result_module
from fedelmy_node.training.evaluation.scoring import evaluate
from fedelmy_node.training.job import DataSpec, Input, Job
from fedelmy_node.training.loading import load
from fedelmy_node.training.operations import Result
from fedelmy_node.training.step import run
from fedelmy_node.training.strategies import head_of, result_of

Picture = Path | str | NDArray[Any] | Image.Image | Tensor
"""An image file, an array (H, W) or (H, W, C), a PIL image, or a tensor (H, W) or (C, H, W)."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrainedModel:
    """A result ready for use: the module in evaluation mode, and its input format and classes."""

    module: nn.Module
    task: Task

    def predict(self, image: Picture, top: int = 1) -> list[tuple[str, float]]:
        """Return the `top` most likely classes and their probabilities, best first.

        Arrays and tensors hold pixel values as a file would: 8 or 16 bit, or floats from 0 to 1.
        A model that takes vectors takes arrays and tensors (D,) or (1, D) only.
        """
        if self.task.input.kind == "vector":
            return self._ranked(_vector(image, self.task.input), top)
        pixels, name = _pixels(image)
        try:
            images = to_input(pixels[np.newaxis], self.task.input, name)
        except DataError as error:
            hint = "Use finite pixel values: 8 or 16 bit, or floats from 0 to 1."
            if self.task.input.window is not None:
                hint = "Use finite pixel values on the scale of the training data."
            raise DataError(error.code, error.message, hint=hint, private=error.private) from error
        return self._ranked(images, top)

    def _ranked(self, images: Tensor, top: int) -> list[tuple[str, float]]:
        with torch.inference_mode():
            logits = self.module(normalised(unit_float(images), self.task.input))
        best = logits[0].double().softmax(dim=0).topk(min(top, len(self.task.classes)))
        names = [self.task.classes[index] for index in best.indices.tolist()]
        return list(zip(names, best.values.tolist(), strict=True))


def load_model(file: Path | str, *, code: Collection[str] = ()) -> TrainedModel:
    """Load a file that `fedelmy-node model export` wrote.

    A `module:function` model is built only if `code` lists its name: a file may name anything.
    """
    with safe_open(file, framework="pt") as opened:
        description = parse_json((opened.metadata() or {}).get("fedelmy", "null").encode())
    if description is None:
        hint = "Create one with `model export`."
        raise BundleError("E-BUNDLE-FORMAT", f"{file} is not an exported model", hint=hint)
    spec, task = ModelSpec(name=description["model"]), decode(Task, description["task"])
    tensors = safetensors.torch.load_file(file)
    kind = description.get("result", "model")
    groups = {MODEL: tensors} if kind == "model" else _groups(tensors)
    known = description.get("strategy")  # its package builds the module
    result = result_of(known) if known else Result(kind=kind)
    head = None
    if made := description.get("head"):
        head = head_of(decode(StrategySpec, made["strategy"]), made["seed"])
    make = partial(one_model, spec, task, code=code, weights=None, make_head=head)
    return TrainedModel(module=result_module(result, make, groups), task=task)


def load_result(found: ResultModel) -> TrainedModel:
    """Load the result of a run at this site."""
    recipe = _recipe(found)
    result = result_of(recipe.strategy.name)
    module = result_module(result, _maker(found, recipe), _bundle(found))
    return TrainedModel(module=module, task=recipe.task)


def export_model(found: ResultModel, out: Path) -> None:
    """Write a plain state dict with all tensors; its metadata say how to build the model again.

    Of a result that is not one model, names begin with the group: `model.1/conv1.weight`.
    """
    recipe, groups = _recipe(found), _whole_groups(found)
    description: dict[str, Any] = {
        "model": recipe.model.name,
        "task": recipe.task,
        "run": found.run,
        "bundle_sha256": found.sha256,
    }
    named = groups.get(MODEL, {})
    result = result_of(recipe.strategy.name)
    if result.kind != "model" or result.module is not None:
        description["result"] = result.kind if result.module is None else "module"
        description |= {"strategy": recipe.strategy.name} if result.module is not None else {}
        named = {f"{group}/{name}": t for group in groups for name, t in groups[group].items()}
    if head_of(recipe.strategy, recipe.seed) is not None:
        description["head"] = {"strategy": recipe.strategy, "seed": recipe.seed}
    # Other software expects float32, whatever type the bundle had.
    tensors = {
        name: (tensor.float() if tensor.is_floating_point() else tensor).contiguous().clone()
        for name, tensor in named.items()
    }
    metadata = {"fedelmy": canonical_json(description).decode()}
    with replacing(out, mode=0o644) as partial:
        safetensors.torch.save_file(tensors, partial, metadata=metadata)


def _whole_groups(found: ResultModel) -> Groups:
    """The groups of a result, with the models' frozen tensors."""
    recipe, groups = _recipe(found), _bundle(found)
    if recipe.model.frozen is None:
        return groups
    make = _maker(found, recipe)
    return {
        group: make(state).state_dict() if is_model(group) else state
        for group, state in groups.items()
    }


def _maker(found: ResultModel, recipe: Recipe) -> Callable[[Mapping[str, Tensor]], nn.Module]:
    """Makes a model of what was trained, with what is frozen."""
    return partial(
        one_model,
        recipe.model,
        recipe.task,
        code=(recipe.model.name,),
        weights=Path(found.weights) if found.weights else None,
        make_head=head_of(recipe.strategy, recipe.seed),
    )


def evaluate_model(found: ResultModel, data: str | None) -> Mapping[str, Any]:
    """Return counts and metrics on the site's own test data, or on all samples of `data`."""
    if data is not None:
        return _evaluate_all(found, data)
    if not found.data:
        message, hint = "the node was started without data", "Choose the data with --data."
        raise DataError("E-DATA-SOURCE", message, hint=hint)
    job = Job(
        kind=EVALUATE,
        site=found.site,
        visit=0,
        recipe=_recipe(found),
        data=DataSpec(
            source=found.data,
            indices=Path(found.indices) if found.indices else None,
            unreadable=cast(Literal["refuse", "skip"], found.unreadable),
        ),
        # The site has agreed to this code, or it would have no result.
        code=(_recipe(found).model.name,),
        weights=Path(found.weights) if found.weights else None,
    )
    return run(
        load(job), (Input(Path(found.path), found.sha256, operation=DELIVER),), lambda *_: None
    ).report


def _evaluate_all(found: ResultModel, data: str) -> Mapping[str, Any]:
    trained, raw = load_result(found), load_source(parse_source(data))
    task, parts = trained.task, []
    raw.require_kind(task.input.kind)
    for part in (raw.pool, raw.test):
        if part is not None:
            numbers = class_numbers(raw.classes, np.unique(part.labels), task.classes)
            positions = np.arange(len(part.labels))
            parts.append(read_samples(part, positions, numbers, task.input, unreadable="refuse")[0])
    cpu = torch.device("cpu")
    batches = (batch for part in parts for batch in eval_batches(part, task.input, device=cpu))
    return evaluate(trained.module, batches, task.classes)


def _vector(image: Picture, wanted: InputFormat) -> Tensor:
    values = np.asarray(image) if isinstance(image, np.ndarray | Tensor) else np.empty(0)
    if values.shape not in ((wanted.width,), (1, wanted.width)):
        message = f"the model takes vectors of {wanted.width} floats"
        raise DataError("E-DATA-FORMAT", message, hint="Pass an array or a tensor, not a file.")
    return to_input(values.reshape(1, 1, -1), wanted, "the vector")


def _pixels(image: Picture) -> tuple[NDArray[Any], str]:
    """Pixel values (H, W) or (H, W, C), and a name for error messages."""
    if isinstance(image, Path | str):
        return _file_pixels(Path(image)), str(image)
    if isinstance(image, Image.Image):
        return image_values(image), "the image"
    if isinstance(image, Tensor):
        tensor = image.detach().cpu()
        # numpy has no bfloat16.
        values = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        values = np.moveaxis(values, 0, -1) if values.ndim == 3 else values
        wanted = "a tensor (H, W) or (C, H, W)"
    else:
        values, wanted = np.asarray(image), "an array (H, W) or (H, W, C)"
    if values.ndim not in (2, 3) or 0 in values.shape or values.shape[2:] > (4,):
        message, hint = f"no image has the shape {np.shape(image)}", f"Pass {wanted}."
        raise DataError("E-DATA-FORMAT", message, hint=hint)
    return values, "the image"


def _file_pixels(path: Path) -> NDArray[Any]:
    if not path.is_file():
        raise DataError("E-DATA-MISSING", f"{path} is not a file", hint="Check the file's name.")
    try:
        return read_image(path, str(path))
    except DataError as error:
        kinds = ", ".join(sorted(suffix[1:] for suffix in SUFFIXES))
        hint = f"Use an intact image file ({kinds}); convert other formats, such as DICOM, first."
        message = f"{path} cannot be read as an image"
        private = error.private.removeprefix(str(path)).removeprefix(": ")  # named already
        raise DataError(error.code, message, hint=hint, private=private) from error


def _recipe(found: ResultModel) -> Recipe:
    return decode(Recipe, json.loads(found.recipe))


def _bundle(found: ResultModel) -> Groups:
    """Check the digest first: the file may have been damaged since the node verified it."""
    path = Path(found.path)
    check_intact(path, found.sha256, f"the result of run {found.run}")
    return read_bundle(path)


def _groups(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, inner = name.partition("/")
        groups.setdefault(group, {})[inner] = tensor
    return groups
