"""Code that is named as `module:function`: whether a text is such a name, and the function that it names.

Nothing of fedelmy decides to run such a function. For a model it is the site, which lists the name in site.toml; for
data it is whoever writes --data. The code itself is on that machine already: no plan and no bundle carries any.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from fedelmy_node.errors import ConfigError, FedelmyError

__all__ = ["TORCHVISION", "is_code", "is_importable", "load_code", "foreign_code"]

TORCHVISION: Final = "torchvision:"
"""Prefix of the names of torchvision's classifiers, which look like code and are none."""
_NOT_TAKEN: Final = frozenset({
    "__main__", "fedelmy_node", "fedelmy_launcher", "fedelmy_proto", "_distutils_hack", "click", "cryptography",
    "google", "grpc", "grpc_health", "grpc_reflection", "jinja2", "joblib", "matplotlib", "mpl_toolkits", "numpy",
    "PIL", "pip", "pkg_resources", "prometheus_client", "rich", "safetensors", "scipy", "setuptools", "sklearn",
    "torch", "torchvision", "wheel",
})  # fmt: skip
"""Modules that every installation has, as it has Python's own: none is a site's, and some remove directories."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*")


def is_code(text: str) -> bool:
    """Whether a text has the form `module:function`."""
    return _NAME.fullmatch(text) is not None and not text.startswith(TORCHVISION)


def is_importable(text: str) -> bool:
    """Whether there is a package or module of that name on this machine; none of its code is run."""
    import importlib.util
    import sys

    top = text.partition(":")[0].partition(".")[0]
    if top in sys.stdlib_module_names or top in _NOT_TAKEN:
        return False  # somebody else's file may name it, and `shutil:rmtree` is no source of data
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def load_code(text: str, what: str) -> Callable[..., Any]:
    """The function that `module:function` names; `what` begins the message if there is none."""
    import importlib

    module, _, function = text.partition(":")
    if not is_importable(text):
        hint = "Install its package, or add its directory to PYTHONPATH. Modules of Python and fedelmy are not taken."
        raise ConfigError("E-CONFIG-EXTENSION", f"{what}: there is no module {module.split('.')[0]!r} here", hint=hint)
    with foreign_code(what):
        found = getattr(importlib.import_module(module), function)
    if not callable(found):
        raise ConfigError("E-CONFIG-EXTENSION", f"{what}: {function} is no function")
    return found  # type: ignore[no-any-return]


@contextmanager
def foreign_code(what: str) -> Iterator[None]:
    """Whatever code that is not ours raises becomes one error that names it; what it said stays on this machine."""
    try:
        yield
    except FedelmyError:
        raise
    except (Exception, SystemExit) as error:
        message = f"{what} cannot be used: it raised {type(error).__name__}"
        raise ConfigError("E-CONFIG-EXTENSION", message, private=f"{_place(error)}: {error}") from error


def _place(error: BaseException) -> str:
    """Where it was raised, for whoever wrote the code."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "at an unknown place"
