"""Whether a bundle is of the agreed shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fedelmy_node.bundles.manifest import TensorInfo
from fedelmy_node.errors import BundleError

__all__ = ["check_manifest"]

_NAMED: Final = 3
"""How many differing tensors a message names."""


def check_manifest(found: Sequence[TensorInfo], expected: Sequence[TensorInfo]) -> None:
    """Raise E-BUNDLE-MANIFEST, naming the first tensors that differ, unless both have the same tensors."""
    here = {tensor.name: tensor for tensor in found}
    wanted = {tensor.name: tensor for tensor in expected}
    if len(here) != len(found):
        raise BundleError("E-BUNDLE-MANIFEST", "the weights name a tensor twice")
    differing = sorted(name for name in here.keys() | wanted.keys() if here.get(name) != wanted.get(name))
    if not differing:
        return
    named = "; ".join(
        f"{name}: {_describe(here.get(name))} instead of {_describe(wanted.get(name))}" for name in differing[:_NAMED]
    )
    more = f"; and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
    raise BundleError("E-BUNDLE-MANIFEST", f"the weights are of another model: {named}{more}")


def _describe(tensor: TensorInfo | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}"
