"""Write and read bundles. One function writes them, so equal tensors give equal bytes everywhere.

Tensors are stored as `group/tensor`. If two names share one tensor (tied weights), the first name
in alphabetical order is stored and the metadata list the others; reading restores both names.

A step's bundle stores float32, and all floats of models, in the recipe's wire type: the file is
transferred as it is, so its sha256 is the same at every site and in simulation. Integers, such as
BatchNorm's counters, and what an operation has given another type keep their type.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedelmy_node.bundle.format import ITEM_BYTES, KEY, metadata_text, parse_metadata, read_header
from fedelmy_node.domain.artifact import TensorInfo
from fedelmy_node.domain.errors import BundleError, TrainingError
from fedelmy_node.domain.federation import Frozen, WireDtype
from fedelmy_node.domain.step_traits import MODEL
from fedelmy_node.store.durable_files import replacing

Groups = Mapping[str, Mapping[str, Tensor]]
"""Group -> name -> tensor, such as {"model": model.state_dict()}."""

_DTYPES: Final = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}
_FLOATS: Final = (torch.float32, torch.bfloat16, torch.float16)
_WIRE_DTYPES: Final = {str(dtype).removeprefix("torch."): dtype for dtype in _FLOATS}


def write_bundle(
    path: Path, groups: Groups, wire: WireDtype | None = None, frozen: Frozen | None = None
) -> tuple[str, int]:
    """Write the groups to `path`, durably and atomically; return the file's sha256 and size.

    Models and float32 are converted to `wire`, if given; E-TRAINING-RANGE if a value is too large.
    """
    stored, aliases = _resolve(groups)
    tensors = {
        name: _converted(name, tensor.detach(), wire).cpu().contiguous()
        for name, tensor in stored.items()
    }
    metadata = {KEY: metadata_text(groups, aliases, frozen)}
    with replacing(path) as partial:
        _save(tensors, partial, metadata)
        with partial.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size


def _save(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:
        # safetensors hides the errno; a full disk must be recognised.
        full = "os error 28" in str(error) or "os error 122" in str(error)
        code = errno.ENOSPC if full else errno.EIO
        raise OSError(code, os.strerror(code)) from error


def read_bundle(path: Path) -> dict[str, dict[str, Tensor]]:
    """The groups of a bundle, on the CPU, with aliases restored; E-BUNDLE-FORMAT if invalid."""
    header = read_header(path)
    names, aliases = parse_metadata(header.metadata)
    try:
        tensors: dict[str, Tensor] = load_file(path)
        tensors |= {alias: tensors[name] for alias, name in aliases.items()}
        groups: dict[str, dict[str, Tensor]] = {group: {} for group in names}
        for name in sorted(tensors):
            group, _, tensor = name.partition("/")
            groups[group][tensor] = tensors[name]
    except (SafetensorError, KeyError) as error:
        message = f"not a bundle: {type(error).__name__}"
        raise BundleError("E-BUNDLE-FORMAT", message, private=str(error)) from error
    return groups


def manifest_of(groups: Groups, wire: WireDtype | None = None) -> tuple[TensorInfo, ...]:
    """The tensors of a bundle of these groups, sorted by name; also works for meta tensors."""
    stored, _ = _resolve(groups)
    return tuple(
        TensorInfo(name=name, dtype=_stored_name(name, tensor, wire), shape=tuple(tensor.shape))
        for name, tensor in sorted(stored.items())
    )


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """New meta tensors of the same types and shapes; names of one tensor stay names of one."""
    made: dict[tuple[object, ...], Tensor] = {}
    return {
        name: made.setdefault(
            _identity(name, tensor), torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        )
        for name, tensor in tensors.items()
    }


def metadata_of(groups: Groups, frozen: Frozen | None = None) -> str:
    """The metadata of a bundle of these groups."""
    return metadata_text(groups, _resolve(groups)[1], frozen)


def bundle_bytes(
    groups: Groups, wire: WireDtype | None = None, frozen: Frozen | None = None
) -> int:
    """The size of the file that `write_bundle` writes; also works for meta tensors."""
    stored, aliases = _resolve(groups)
    dtypes = {name: _stored_name(name, tensor, wire) for name, tensor in stored.items()}
    header: dict[str, Any] = {"__metadata__": {KEY: metadata_text(groups, aliases, frozen)}}
    position = 0
    # safetensors writes the widest types first, then by name; the order affects the header's size.
    for name in sorted(stored, key=lambda name: (-ITEM_BYTES[dtypes[name]], name)):
        tensor, dtype = stored[name], dtypes[name]
        end = position + tensor.numel() * ITEM_BYTES[dtype]
        offsets = [position, end]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        position = end
    text = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + (text + 7) // 8 * 8 + position


def is_model(group: str) -> bool:
    """Whether a group is a model: `model`, or of several `model.1`, `model.2`, ..."""
    return group.partition(".")[0] == MODEL


def _stored_dtype(name: str, tensor: Tensor, wire: WireDtype | None) -> torch.dtype:
    if wire is None or not tensor.is_floating_point():
        return tensor.dtype
    converts = tensor.dtype == torch.float32 or is_model(name.partition("/")[0])
    return _WIRE_DTYPES[wire] if converts else tensor.dtype


def _stored_name(name: str, tensor: Tensor, wire: WireDtype | None) -> str:
    return _DTYPES[_stored_dtype(name, tensor, wire)]


def _converted(name: str, tensor: Tensor, wire: WireDtype | None) -> Tensor:
    """The tensor in its stored type; a finite value must not become infinite."""
    dtype = _stored_dtype(name, tensor, wire)
    if tensor.dtype == dtype:
        return tensor
    converted = tensor.to(dtype)
    if bool((tensor.isfinite() & ~converted.isfinite()).any()):
        largest = tensor.abs().nan_to_num(posinf=0.0).max().item()
        limit = f"{wire} (at most {torch.finfo(dtype).max:.3g})"
        message = f"{name} has values up to {largest:.3g}, too large for {limit}"
        raise TrainingError("E-TRAINING-RANGE", message)
    return converted


def _resolve(groups: Groups) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every distinct tensor by its first name, and the other names with that first one."""
    named = {
        f"{group}/{name}": t for group, tensors in groups.items() for name, t in tensors.items()
    }
    stored: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[object, ...], str] = {}
    for name in sorted(named):
        tensor = named[name]
        if tensor.dtype not in _DTYPES:
            message = f"tensor {name!r} is {tensor.dtype}, which bundles do not support"
            raise BundleError("E-BUNDLE-FORMAT", message)
        original = first.setdefault(_identity(name, tensor), name)
        if original == name:
            stored[name] = tensor
        else:
            aliases[name] = original
    return stored, aliases


def _identity(name: str, tensor: Tensor) -> tuple[object, ...]:
    """Equal for two names of one tensor. Meta tensors have no address, so compare the storage."""
    if tensor.numel() == 0:
        return (name,)  # empty tensors share nothing
    storage = tensor.untyped_storage()._cdata
    return (storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
