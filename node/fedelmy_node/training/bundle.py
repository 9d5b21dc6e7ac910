"""Writing and reading bundles. One function writes them, so that equal tensors are equal bytes everywhere.

Tensors are stored as `group/tensor`. Where two names share one tensor (tied weights), the first name in
alphabetical order is stored and the metadata list the others, so that reading gives both names again.

A step's bundle has its floats in the recipe's wire type: the file that is written is the one that travels, so
its sha256 is the same at every site and in simulation. Integers, such as BatchNorm's counters, stay as they are.
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

from fedelmy_node.bundles.header import ITEM_BYTES, read_header
from fedelmy_node.bundles.manifest import TensorInfo
from fedelmy_node.bundles.metadata import KEY, metadata_text, parse_metadata
from fedelmy_node.domain.federation import WireDtype
from fedelmy_node.durable import replacing
from fedelmy_node.errors import BundleError, TrainingError

__all__ = ["Groups", "write_bundle", "read_bundle", "manifest_of", "metadata_of", "bundle_bytes"]

Groups = Mapping[str, Mapping[str, Tensor]]
"""What a bundle holds: group -> name -> tensor, such as {"model": model.state_dict()}."""

_DTYPES: Final = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32",
    torch.int64: "I64", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
}  # fmt: skip
_WIRE_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def write_bundle(path: Path, groups: Groups, wire: WireDtype | None = None) -> tuple[str, int]:
    """Write the groups to `path`, durably and at once; gives the file's sha256 and its size.

    Floats are stored in the type `wire`, or as they are; E-TRAINING-RANGE if one is too large for that type.
    """
    stored, aliases = _resolve(groups)
    tensors = {name: _converted(name, tensor.detach(), wire).cpu().contiguous() for name, tensor in stored.items()}
    metadata = {KEY: metadata_text(groups, aliases)}
    with replacing(path) as partial:
        _save(tensors, partial, metadata)
        with partial.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size


def _save(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:
        # It wraps what the system said; a full disk must stay recognisable.
        full = "os error 28" in str(error) or "os error 122" in str(error)
        code = errno.ENOSPC if full else errno.EIO
        raise OSError(code, os.strerror(code)) from error


def read_bundle(path: Path) -> dict[str, dict[str, Tensor]]:
    """The groups of a bundle, on the CPU, aliases restored; E-BUNDLE-FORMAT if it is not one of ours."""
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
        raise BundleError("E-BUNDLE-FORMAT", f"not a bundle: {type(error).__name__}", private=str(error)) from error
    return groups


def manifest_of(groups: Groups, wire: WireDtype | None = None) -> tuple[TensorInfo, ...]:
    """The tensors that a bundle of these groups has, sorted by name; works for meta tensors, too."""
    stored, _ = _resolve(groups)
    return tuple(
        TensorInfo(name=name, dtype=_DTYPES[_stored_dtype(tensor, wire)], shape=tuple(tensor.shape))
        for name, tensor in sorted(stored.items())
    )


def metadata_of(groups: Groups) -> str:
    """What a bundle of these groups says of itself."""
    _, aliases = _resolve(groups)
    return metadata_text(groups, aliases)


def bundle_bytes(groups: Groups, wire: WireDtype | None = None) -> int:
    """The size of the file that `write_bundle` makes of these groups, of meta tensors, too."""
    stored, aliases = _resolve(groups)
    dtypes = {name: _DTYPES[_stored_dtype(tensor, wire)] for name, tensor in stored.items()}
    header: dict[str, Any] = {"__metadata__": {KEY: metadata_text(groups, aliases)}}
    position = 0
    # safetensors writes the widest types first, then by name; the order decides the offsets' digits.
    for name in sorted(stored, key=lambda name: (-ITEM_BYTES[dtypes[name]], name)):
        tensor = stored[name]
        end = position + tensor.numel() * ITEM_BYTES[dtypes[name]]
        header[name] = {
            "dtype": dtypes[name],
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + (text + 7) // 8 * 8 + position


def _stored_dtype(tensor: Tensor, wire: WireDtype | None) -> torch.dtype:
    return tensor.dtype if wire is None or not tensor.is_floating_point() else _WIRE_DTYPES[wire]


def _converted(name: str, tensor: Tensor, wire: WireDtype | None) -> Tensor:
    """The tensor in the type that is stored; a finite value must not become infinite on the way."""
    dtype = _stored_dtype(tensor, wire)
    if tensor.dtype == dtype:
        return tensor
    converted = tensor.to(dtype)
    if bool((tensor.isfinite() & ~converted.isfinite()).any()):
        largest = tensor.abs().nan_to_num(posinf=0.0).max().item()
        message = f"{name} has values up to {largest:.3g}, too large for {wire} (at most {torch.finfo(dtype).max:.3g})"
        raise TrainingError("E-TRAINING-RANGE", message)
    return converted


def _resolve(groups: Groups) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every distinct tensor under the first of its names, and every other name with that first one."""
    named = {f"{group}/{name}": tensors[name] for group, tensors in groups.items() for name in tensors}
    stored: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[object, ...], str] = {}
    for name in sorted(named):
        tensor = named[name]
        if tensor.dtype not in _DTYPES:
            raise BundleError("E-BUNDLE-FORMAT", f"tensor {name!r} is {tensor.dtype}, which no bundle has")
        original = first.setdefault(_identity(name, tensor), name)
        if original == name:
            stored[name] = tensor
        else:
            aliases[name] = original
    return stored, aliases


def _identity(name: str, tensor: Tensor) -> tuple[object, ...]:
    """Equal for two names of one tensor. By storage, not address: tensors on the meta device have none."""
    if tensor.numel() == 0:
        return (name,)  # without elements nothing is shared, wherever the tensors happen to lie
    storage = tensor.untyped_storage()._cdata
    return (storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
