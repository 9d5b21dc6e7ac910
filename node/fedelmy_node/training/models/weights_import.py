"""Turn a file of weights into a safetensors file in the site's directory of weights.

A torch file is a pickle, and unpickling can run any code; `weights_only` refuses that.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import safetensors.torch
import torch
from torch import Tensor

from fedelmy_node.bundle.format import read_header
from fedelmy_node.domain.errors import BundleError, ConfigError
from fedelmy_node.domain.federation import WeightsFile
from fedelmy_node.store.durable_files import file_sha256, replacing, write_errors
from fedelmy_node.training.models.weights_file import check_finite, parse_weights

SUFFIX: Final = ".safetensors"
_WRAPPERS: Final = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts store the state dict."""
_PARALLEL: Final = "module."
"""Prefix of every name if the model was saved inside DataParallel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A file in the directory of weights."""

    path: Path
    sha256: str
    tensors: int
    size: int


def import_weights(source: Path, directory: Path, name: str | None = None) -> Imported:
    """Write the weights durably; a safetensors file keeps its bytes, and so its digest.

    An equal file is kept, a different one with the same name is refused.
    """
    name = name or f"{source.stem}{SUFFIX}"
    WeightsFile(file=name, sha256="0" * 64)  # checks the name
    try:
        data = source.read_bytes()
    except OSError as error:
        message = f"cannot read {source}: {error.strerror or type(error).__name__}"
        hint = "Give the path of a torch or safetensors file."
        raise ConfigError("E-CONFIG-MISSING", message, hint=hint) from error
    if source.suffix == SUFFIX:
        state = parse_weights(data, source.name)
    else:
        state = _tensors(_load(source), source.name)
        check_finite(state, source.name)
        data = safetensors.torch.save(state)
    digest, path = hashlib.sha256(data).hexdigest(), directory / name
    if path.exists() and file_sha256(path) != digest:
        hint = "Choose another name with --name; a plan finds weights by their digest."
        raise ConfigError(
            "E-CONFIG-VALUE", f"{path} already exists with different content", hint=hint
        )
    with write_errors(path):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        with replacing(path) as partial:
            partial.write_bytes(data)
    return Imported(path=path, sha256=digest, tensors=len(state), size=len(data))


def list_weights(directory: Path) -> list[Imported]:
    """The files in the directory of weights, with their digests."""
    return [
        Imported(
            path=path,
            sha256=file_sha256(path),
            tensors=len(read_header(path).manifest),
            size=path.stat().st_size,
        )
        for path in sorted(directory.glob(f"*{SUFFIX}"))
    ]


def _load(source: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old formats of torch's own
            return torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises almost anything for a damaged file
        message = f"{source.name} contains more than tensors, possibly code, so it was not loaded"
        hint = "Save its state dict: torch.save(model.state_dict(), FILE), or use safetensors."
        raise BundleError("E-WEIGHTS-FORMAT", message, hint=hint, private=str(error)) from error


def _tensors(loaded: Any, name: str) -> dict[str, Tensor]:
    """The state dict in a file, without wrappers, each tensor in memory of its own."""
    for key in _WRAPPERS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not loaded:
        message = f"{name} contains a {type(loaded).__name__}, not a state dict"
        raise BundleError("E-WEIGHTS-FORMAT", message)
    others = [str(key) for key, value in loaded.items() if not isinstance(value, Tensor)]
    if others:
        message = f"{name} is not a state dict: {others[0]!r} is not a tensor"
        raise BundleError("E-WEIGHTS-FORMAT", message)
    prefix = _PARALLEL if all(str(key).startswith(_PARALLEL) for key in loaded) else ""
    return {
        str(key).removeprefix(prefix): tensor.detach().contiguous().clone()
        for key, tensor in loaded.items()
    }
