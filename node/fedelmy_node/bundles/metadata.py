"""What a bundle says of itself, in its one metadata entry: its format, its groups, and further names of its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fedelmy_node.bundles.manifest import TensorInfo
from fedelmy_node.config.decode import canonical_json
from fedelmy_node.config.strict_json import parse_json
from fedelmy_node.errors import BundleError

__all__ = ["KEY", "check_metadata", "metadata_text", "parse_metadata"]

KEY: Final = "fedelmy"
"""The only metadata key: safetensors writes several in random order."""
_FORMAT: Final = 1


def metadata_text(groups: Iterable[str], aliases: Mapping[str, str]) -> str:
    """The entry of a bundle with these groups; `aliases` has the further names of its tensors."""
    return canonical_json({"format": _FORMAT, "groups": sorted(groups), "aliases": aliases}).decode()


def parse_metadata(metadata: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Groups and aliases; E-BUNDLE-FORMAT if it is not a bundle of ours."""
    try:
        table: dict[str, Any] = parse_json(metadata[KEY].encode())
        groups, aliases = table["groups"], table["aliases"]
        names = [*groups, *aliases, *aliases.values()]
        usable = table["format"] == _FORMAT and all(isinstance(name, str) for name in names)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise BundleError("E-BUNDLE-FORMAT", "not a bundle: it has other metadata") from error
    if not usable:
        raise BundleError("E-BUNDLE-FORMAT", f"not a bundle: format {table['format']!r} is not known here")
    return groups, aliases


def check_metadata(found: Mapping[str, str], expected: str, manifest: Sequence[TensorInfo]) -> None:
    """Raise unless a bundle of these tensors says exactly what is expected.

    Nothing is expected by a run that was prepared before this was recorded; then it must make sense.
    """
    groups, aliases = parse_metadata(found)
    if expected:
        if found != {KEY: expected}:
            raise BundleError("E-BUNDLE-FORMAT", "the weights are described in another way than those of this run")
        return
    names = {tensor.name for tensor in manifest}
    known = {_group(name) for name in names} == set(groups)
    if not (known and names.issuperset(aliases.values()) and all(_group(alias) in groups for alias in aliases)):
        raise BundleError("E-BUNDLE-FORMAT", "the metadata of the weights describe other tensors")


def _group(name: str) -> str:
    return name.partition("/")[0]
