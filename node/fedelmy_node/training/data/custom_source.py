"""Custom sources: a function of an installed package, or the site's own `module:function`.

The function takes the path, if --data has one, and returns a dict of arrays (see `arrays`) or
`RawData`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedelmy_node.config.registry import foreign_code, is_code, load_code
from fedelmy_node.domain.errors import ConfigError, DataError
from fedelmy_node.training.data import INSTALLED, Source
from fedelmy_node.training.data.arrays import raw_data
from fedelmy_node.training.data.sources import RawData


def load_custom(source: Source) -> RawData:
    """Call the function and validate its result."""
    what = "the site's own data function" if is_code(source.kind) else f"data {source.kind!r}"
    try:
        function = _function(source, what)
        _check_path(function, source, what)
        with foreign_code(what):
            given = function() if source.path is None else function(source.path)
    except ConfigError as error:
        message, hint = error.message, error.hint
        raise DataError("E-DATA-SOURCE", message, hint=hint, private=error.private) from error
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
    """An extra or missing path is an error in --data, not in the code."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*([] if source.path is None else [source.path]))
    except TypeError as error:
        message = f"{what} {'needs a path' if source.path is None else 'takes no path'}"
        private = f"{source.kind}{signature}"
        raise DataError("E-DATA-SOURCE", message, private=private) from error


def _adapted(given: object, what: str) -> RawData:
    if isinstance(given, RawData):
        return given
    if not isinstance(given, Mapping):
        message = f"{what} returned a {type(given).__name__}, not a dict with images and labels"
        raise DataError("E-DATA-FORMAT", message)
    with foreign_code(what):
        arrays = {str(name): np.asanyarray(value) for name, value in given.items()}
    get, vectors = arrays.__getitem__, "features" in arrays
    return raw_data(arrays, get, get, what, vectors=vectors)
