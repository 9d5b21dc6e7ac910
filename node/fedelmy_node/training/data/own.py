"""Sources that fedelmy does not know: a function of an installed package, or `module:function` of the site's own.

The function is given the path, if --data has one, and gives a dict of arrays, as `arrays` describes them, or `RawData`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedelmy_node.config.code import foreign_code, is_code, load_code
from fedelmy_node.errors import ConfigError, DataError
from fedelmy_node.training.data import INSTALLED, Source
from fedelmy_node.training.data.arrays import raw_data
from fedelmy_node.training.data.raw import RawData

__all__ = ["load_own"]


def load_own(source: Source) -> RawData:
    """Call the function, and make sure of what it gives."""
    what = "the site's own data function" if is_code(source.kind) else f"data {source.kind!r}"
    try:
        function = _function(source, what)
        _check_path(function, source, what)
        with foreign_code(what):
            given = function() if source.path is None else function(source.path)
    except ConfigError as error:
        raise DataError("E-DATA-SOURCE", error.message, hint=error.hint, private=error.private) from error
    return _adapted(given, what)


def _function(source: Source, what: str) -> Callable[..., Any]:
    if is_code(source.kind):
        return load_code(source.kind, what)
    kind = INSTALLED.find(source.kind)
    if kind is None:
        raise DataError("E-DATA-SOURCE", "unknown kind of data", private=source.kind)
    function: Callable[..., Any] = INSTALLED.load(source.kind, kind.loader)
    return function


def _check_path(function: Callable[..., Any], source: Source, what: str) -> None:
    """A path too many or too few is a mistake after --data, not one of the code."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*([] if source.path is None else [source.path]))
    except TypeError as error:
        wrong = "needs a path" if source.path is None else "takes no path"
        raise DataError("E-DATA-SOURCE", f"{what} {wrong}", private=f"{source.kind}{signature}") from error


def _adapted(given: object, what: str) -> RawData:
    if isinstance(given, RawData):
        return given
    if not isinstance(given, Mapping):
        message = f"{what} gives a {type(given).__name__}, not a dict with images and labels"
        raise DataError("E-DATA-FORMAT", message)
    with foreign_code(what):
        arrays = {str(name): np.asanyarray(value) for name, value in given.items()}
    return raw_data(arrays, arrays.__getitem__, arrays.__getitem__, what)
