"""A site's samples: from whatever the site has to tensors that all sites number and scale alike.

    __init__     the kinds of sources, and `parse_source`       nothing is imported yet
    raw          the form that all loaders give                  numpy
    digits idx cifar10 npz imagefolder shifted                   one loader each
    arrays       named arrays as a source                        numpy
    own          functions of installed packages and of sites    numpy
    indices      the file that names a subset of a source        standard library
    convert      stored values -> the federation's input format  torch
    storage      in memory, or on disk what does not fit          torch
    samples      samples as tensors; unreadable files            torch
    site         `open_data`: subset, classes, split             torch

This module and `indices` stay free of torch, numpy, Pillow and scikit-learn: the daemon and the launcher
check what a user wrote with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedelmy_node.config.code import is_code, is_importable
from fedelmy_node.config.registry import Registry
from fedelmy_node.errors import DataError

__all__ = ["SourceKind", "SOURCES", "INSTALLED", "Source", "parse_source", "absolute_source"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceKind:
    """One kind of source that --data may name."""

    description: str
    """One line for `--help` and the documentation."""
    loader: str
    """`module:function`; the function takes the path, if the kind has one, and gives `RawData`."""
    path: str | None = None
    """What stands after the colon, as usage texts write it; None: nothing may stand there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What a valid `--data` says."""

    kind: str
    """A name of `INSTALLED`, or `module:function`."""
    path: Path | None = None
    """Given exactly where the kind has one; whether it exists is the loader's question."""

    @property
    def told(self) -> str:
        """What others are told of it: the name of a module is the name of a file."""
        return "own code" if is_code(self.kind) else self.kind


_HERE: Final = "fedelmy_node.training.data"

SOURCES: Final[Mapping[str, SourceKind]] = {
    "digits": SourceKind(
        description="scikit-learn's embedded handwritten digits, 8x8 grey, no path",
        loader=f"{_HERE}.digits:load",
    ),
    "imagefolder": SourceKind(
        description="image files in one folder per class, or in train/CLASS and test/CLASS",
        loader=f"{_HERE}.imagefolder:load",
        path="DIRECTORY",
    ),
    "npz": SourceKind(
        description="a NumPy archive with the arrays images and labels",
        loader=f"{_HERE}.npz:load",
        path="FILE",
    ),
    "mnist": SourceKind(
        description="MNIST's four idx files, gzipped or not",
        loader=f"{_HERE}.idx:load_mnist",
        path="DIRECTORY",
    ),
    "fashion-mnist": SourceKind(
        description="Fashion-MNIST's four idx files, gzipped or not",
        loader=f"{_HERE}.idx:load_fashion_mnist",
        path="DIRECTORY",
    ),
    "cifar10": SourceKind(
        description="CIFAR-10, binary version (data_batch_1.bin ... test_batch.bin)",
        loader=f"{_HERE}.cifar10:load",
        path="DIRECTORY",
    ),
    "shifted": SourceKind(
        description="a synthetic domain (plain, blurred, inverted, edges) of another source",
        loader=f"{_HERE}.shifted:load",
        path="DOMAIN:KIND[:PATH]",
    ),
}


INSTALLED: Final = Registry(
    "fedelmy.data",
    "data",
    SOURCES,
    lambda description, target: SourceKind(description=description, loader=target, path=_PERHAPS),
)
"""These, and those of installed packages."""
_PERHAPS: Final = "[PATH]"
"""Whether a kind of a package takes a path shows when its function is called."""


def parse_source(text: str) -> Source:
    """The source that `KIND[:PATH]` or `MODULE:FUNCTION[:PATH]` names, or an error with the nearest valid spelling."""
    name, colon, path = text.partition(":")
    kind = INSTALLED.find(name)
    if kind is None:
        function, _, behind = path.partition(":")
        if is_code(f"{name}:{function}") and is_importable(name):
            return Source(kind=f"{name}:{function}", path=Path(behind) if behind else None)
        raise DataError("E-DATA-SOURCE", "unknown kind of data", hint=_suggestion(name), private=text)
    if kind.path is None and colon:
        raise DataError("E-DATA-SOURCE", f"{name} takes no path", hint=f"Write {name}.", private=text)
    if kind.path not in (None, _PERHAPS) and not path:
        raise DataError("E-DATA-SOURCE", f"{name} needs a path", hint=f"Write {name}:{kind.path}.")
    return Source(kind=name, path=Path(path) if path else None)


def absolute_source(text: str) -> str:
    """The same source for a process that works in another directory; what is wrong with it, that one will say.

    What stands behind a function of somebody's own may be anything; if it is a file here, that is what it means.
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
    import difflib  # only whoever errs needs it

    close = difflib.get_close_matches(name.lower(), INSTALLED.names, n=1)
    if close:
        path = SOURCES[close[0]].path if close[0] in SOURCES else _PERHAPS
        return f"Did you mean {close[0]}{f':{path}' if path else ''}?"
    if "/" in name:
        return "A path needs its kind before it, such as imagefolder:DIRECTORY or npz:FILE."
    return f"Known kinds: {', '.join(INSTALLED.names)}; or MODULE:FUNCTION of a module that Python finds here."
