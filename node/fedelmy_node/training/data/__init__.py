"""A site's data sources: from files to tensors that all sites number and scale alike.

    __init__           the kinds of sources, and `parse_source`      no heavy imports
    indices            the file that selects a subset of a source    standard library
    sources            the common form of loaded data                numpy
    public_datasets    digits, MNIST, CIFAR-10                       numpy
    image_folder       image files in one folder per class           numpy, Pillow
    arrays             npz files of images or vectors, and arrays from functions          numpy
    custom_source      functions of packages and of sites            numpy
    synthetic_shift    synthetic domains of another source           numpy
    source_cache       sources that stay open for simulation         numpy
    image_conversion   stored values -> the input format             torch
    samples            tensors in memory or on disk                  torch
    site_data          `open_data`: subset, classes, split           torch

This module and `indices` import no torch, numpy, Pillow or scikit-learn: the daemon and the
launcher use them to validate user input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedelmy_node.config.registry import Registry, is_code, is_importable
from fedelmy_node.domain.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceKind:
    """One kind of source for --data."""

    description: str
    """One line for `--help` and the documentation."""
    loader: str
    """`module:function`; the function takes the path, if any, and returns `RawData`."""
    path: str | None = None
    """What follows the colon, as usage texts write it; None: the kind takes no path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A valid value of `--data`."""

    kind: str
    """A name of `INSTALLED`, or `module:function`."""
    path: Path | None = None
    """May not exist; the loader checks."""

    @property
    def public_name(self) -> str:
        """What other sites may see: a module name could reveal a file name."""
        return "own code" if is_code(self.kind) else self.kind


_DESCRIPTIONS: Final = {
    "digits": "scikit-learn's built-in handwritten digits, 8x8 grey; no path",
    "imagefolder": "image files in one folder per class, or in train/CLASS and test/CLASS",
    "npz": "a NumPy archive with the arrays images and labels",
    "features": "a NumPy archive with the arrays features (vectors, float32) and labels",
    "mnist": "MNIST's four idx files, gzipped or not",
    "fashion-mnist": "Fashion-MNIST's four idx files, gzipped or not",
    "cifar10": "CIFAR-10, binary version (data_batch_1.bin ... test_batch.bin)",
    "shifted": "a synthetic domain (plain, blurred, inverted, edges) of another source",
}
_LOADERS: Final = {
    "digits": ("public_datasets:load_digits", None),
    "imagefolder": ("image_folder:load", "DIRECTORY"),
    "npz": ("arrays:load_npz", "FILE"),
    "features": ("arrays:load_features", "FILE"),
    "mnist": ("public_datasets:load_mnist", "DIRECTORY"),
    "fashion-mnist": ("public_datasets:load_fashion_mnist", "DIRECTORY"),
    "cifar10": ("public_datasets:load_cifar10", "DIRECTORY"),
    "shifted": ("synthetic_shift:load", "DOMAIN:KIND[:PATH]"),
}
SOURCES: Final[Mapping[str, SourceKind]] = {
    name: SourceKind(description=_DESCRIPTIONS[name], loader=f"{__name__}.{loader}", path=path)
    for name, (loader, path) in _LOADERS.items()
}

_OPTIONAL_PATH: Final = "[PATH]"
"""Whether a package's function takes a path is known only when it is called."""
INSTALLED: Final = Registry(
    "fedelmy.data",
    "data",
    SOURCES,
    lambda text, target: SourceKind(description=text, loader=target, path=_OPTIONAL_PATH),
)
"""Built-in kinds, and those of installed packages."""


def parse_source(text: str) -> Source:
    """Parse `KIND[:PATH]` or `MODULE:FUNCTION[:PATH]`; an error suggests the nearest spelling."""
    name, colon, path = text.partition(":")
    kind = INSTALLED.find(name)
    if kind is None:
        function, _, rest = path.partition(":")
        if is_code(f"{name}:{function}") and is_importable(name):
            return Source(kind=f"{name}:{function}", path=Path(rest) if rest else None)
        hint = _suggestion(name)
        raise DataError("E-DATA-SOURCE", "unknown kind of data", hint=hint, private=text)
    if kind.path is None and colon:
        hint = f"Write {name}."
        raise DataError("E-DATA-SOURCE", f"{name} takes no path", hint=hint, private=text)
    if kind.path not in (None, _OPTIONAL_PATH) and not path:
        raise DataError("E-DATA-SOURCE", f"{name} needs a path", hint=f"Write {name}:{kind.path}.")
    return Source(kind=name, path=Path(path) if path else None)


def absolute_source(text: str) -> str:
    """The same source with an absolute path; invalid sources are returned unchanged.

    The argument of a custom function may be anything; it is a path if such a file exists.
    """
    name, _, rest = text.partition(":")
    if name == "shifted":
        domain, colon, shifted = rest.partition(":")
        return f"{name}:{domain}:{absolute_source(shifted)}" if colon else text
    try:
        source = parse_source(text)
    except DataError:
        return text
    if source.path is None or not (name in SOURCES or source.path.exists()):
        return text
    return f"{source.kind}:{source.path.absolute()}"


def _suggestion(name: str) -> str:
    import difflib  # needed for errors only

    close = difflib.get_close_matches(name.lower(), INSTALLED.names, n=1)
    if close:
        path = SOURCES[close[0]].path if close[0] in SOURCES else _OPTIONAL_PATH
        return f"Did you mean {close[0]}{f':{path}' if path else ''}?"
    if "/" in name:
        return "A path needs its kind before it, such as imagefolder:DIRECTORY or npz:FILE."
    names = ", ".join(INSTALLED.names)
    return f"Known kinds: {names}; or MODULE:FUNCTION from an importable module."
