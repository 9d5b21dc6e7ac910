"""Weights that a model starts from: a file in the site's own directory, found by its digest.

The plan names a file and its sha256; the site has the file. The digest decides: a file of another
name with that digest is as good, and one with the name alone is refused.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedelmy_node.domain.errors import BundleError, ConfigError
from fedelmy_node.domain.federation import ModelSpec, Task, WeightsFile
from fedelmy_node.training.models.trainable import frozen_names, head_names

logger = logging.getLogger(__name__)

_NAMED: Final = 5
_COUNTER: Final = "num_batches_tracked"
"""BatchNorm's counter, which old files lack and which only a momentum of None needs."""


def load_weights(
    module: nn.Module, spec: ModelSpec, task: Task, directory: Path | None, seed: int | None = None
) -> tuple[str, ...]:
    """Set a model to the plan's weights; return the names that are new, with random values.

    Only the head may be new, if the file has none or one for other classes. With a seed, it gets
    torch's usual random values: some libraries draw heads for training from scratch, too large for
    few samples. On the meta device the file is checked, and nothing is set.
    """
    if spec.weights is None:
        return ()
    state = parse_weights(_read(directory, spec.weights), spec.weights.file)
    head = head_names(module, spec, task) if _lacks_any(module, state) else frozenset()
    new = head if _unusable(module, state, head) else frozenset()
    _check_fit(module, state, new, spec)
    if untrained := sorted(new & frozen_names(module, spec, task)):
        message = f"train: {untrained[0]!r} is new, because the weights have no head for"
        hint = 'Use train = "head", or add a pattern that matches the head.'
        message = f"{message} {len(task.classes)} classes; it must be trained"
        raise ConfigError("E-CONFIG-TRAIN", message, hint=hint)
    if new:
        logger.info("the weights have no head for these classes: %s is new", ", ".join(sorted(new)))
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if name in state and name not in new and not tensor.is_meta:
                tensor.copy_(state[name])
    if seed is not None:
        _draw(module, new, seed)
    return tuple(sorted(new))


def _draw(module: nn.Module, new: Collection[str], seed: int) -> None:
    owners = {name.rpartition(".")[0] for name in new}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for path, part in module.named_modules():
            if path in owners and isinstance(part, nn.Linear | nn.Conv2d):
                part.reset_parameters()


def parse_weights(data: bytes, name: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file; E-WEIGHTS-FORMAT if it is none or not finite."""
    try:
        state: dict[str, Tensor] = safetensors.torch.load(data)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        message = f"{name} is not a safetensors file"
        raise BundleError("E-WEIGHTS-FORMAT", message, private=str(error)) from error
    check_finite(state, name)
    return state


def check_finite(state: Mapping[str, Tensor], name: str) -> None:
    """Raise E-WEIGHTS-FORMAT for NaN and infinity."""
    for key, tensor in state.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            message = f"{name}: {key!r} contains NaN or infinity"
            raise BundleError("E-WEIGHTS-FORMAT", message)


def _read(directory: Path | None, wanted: WeightsFile) -> bytes:
    """The file's bytes, read once, so that what is checked is what is used."""
    files = sorted(directory.glob("*.safetensors")) if directory is not None else []
    named = [path for path in files if path.name == wanted.file]
    found = ""
    for path in [*named, *(path for path in files if path not in named)]:
        try:
            data = path.read_bytes()
        except OSError as error:
            logger.warning("a weights file cannot be read: %s", error.strerror)
            continue
        digest = hashlib.sha256(data).hexdigest()
        if digest == wanted.sha256:
            return data
        found = found or (digest if path in named else "")
    private = str(directory or "")
    if found:
        message = f"{wanted.file} at this site is a different file: its sha256 is {found}"
        message = f"{message}, the plan's is {wanted.sha256}"
        raise BundleError("E-WEIGHTS-DIGEST", message, private=private)
    message = f"this site has no weights {wanted.file} with sha256 {wanted.sha256}"
    raise BundleError("E-WEIGHTS-MISSING", message, private=private)


def _lacks_any(module: nn.Module, state: Mapping[str, Tensor]) -> bool:
    held = module.state_dict()
    return bool(_unusable(module, state, held)) or not state.keys() <= held.keys()


def _unusable(
    module: nn.Module, state: Mapping[str, Tensor], names: Collection[str]
) -> frozenset[str]:
    """Those of the names that the file lacks, or has in another shape."""
    held = module.state_dict()
    return frozenset(
        name
        for name in names
        if name not in state or (name in held and state[name].shape != held[name].shape)
    )


def _check_fit(
    module: nn.Module, state: Mapping[str, Tensor], new: Collection[str], spec: ModelSpec
) -> None:
    """Raise E-WEIGHTS-MODEL, naming the first differences, unless all but `new` fits."""
    held = module.state_dict()
    heads = tuple({f"{name.rpartition('.')[0]}." for name in new})
    missing = [
        name
        for name in held
        if name not in state and name not in new and not name.endswith(_COUNTER)
    ]
    unexpected = [name for name in state if name not in held and not name.startswith(heads)]
    shaped = [
        f"{name} {list(state[name].shape)} instead of {list(held[name].shape)}"
        for name in held
        if name in state and name not in new and state[name].shape != held[name].shape
    ]
    problems = [
        f"{what}: {_first(names)}"
        for what, names in (
            ("it lacks", missing),
            ("the model does not have", unexpected),
            ("other shapes", shaped),
        )
        if names
    ]
    if problems:
        assert spec.weights is not None
        message = f"{spec.weights.file} does not fit model {spec.name!r}: {'; '.join(problems)}"
        raise BundleError("E-WEIGHTS-MODEL", message)


def _first(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
