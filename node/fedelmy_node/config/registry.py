"""Registries of models, strategies, topologies and data: built in or from installed packages.

Also `module:function` names. Those run only where the local machine permits it: a site lists the
model in site.toml, or its administrator writes --data. The code must be installed there already:
plans and bundles never contain code.

Packages register names by entry points, such as `[project.entry-points."fedelmy.models"]`. Their
metadata is read only for names that are not built in, and for listings; their code is imported only
when used. A broken package affects nothing else, and none can replace a built-in name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from fedelmy_node.domain.errors import ConfigError, FedelmyError
from fedelmy_node.domain.text import clean

if TYPE_CHECKING:
    from importlib.metadata import Distribution

TORCHVISION: Final = "torchvision:"
"""Prefix of torchvision's classifiers, which look like `module:function` but are built in."""
TIMM: Final = "timm:"
"""Prefix of timm's classifiers, likewise; the package is optional."""
_RESERVED: Final = (
    {"__main__", "fedelmy_node", "fedelmy_launcher", "fedelmy_proto"}
    | {"_distutils_hack", "pip", "pkg_resources", "setuptools", "wheel"}
    | {"click", "cryptography", "google", "grpc", "grpc_health", "grpc_reflection", "jinja2"}
    | {"joblib", "matplotlib", "mpl_toolkits", "numpy", "PIL", "prometheus_client", "rich"}
    | {"safetensors", "scipy", "sklearn", "timm", "torch", "torchvision"}
)
"""Modules of every installation, refused like Python's own: none belongs to the site."""
_IDENTIFIER: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_CODE_NAME: Final = re.compile(rf"{_IDENTIFIER}(\.{_IDENTIFIER})*:{_IDENTIFIER}")


def is_code(text: str) -> bool:
    """Return whether a text has the form `module:function`."""
    return _CODE_NAME.fullmatch(text) is not None and not text.startswith((TORCHVISION, TIMM))


def is_importable(text: str) -> bool:
    """Return whether the module is installed and permitted, without running its code."""
    import importlib.util
    import sys

    top = text.partition(":")[0].partition(".")[0]
    if top in sys.stdlib_module_names or top in _RESERVED:
        return False  # the name may come from a file of others: never call `shutil:rmtree`
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def load_code(text: str, what: str) -> Callable[..., Any]:
    """Import the function that `module:function` names; `what` prefixes error messages."""
    import importlib

    module, _, function = text.partition(":")
    if not is_importable(text):
        hint = "Install its package, or add its directory to PYTHONPATH."
        message = f"{what}: module {module.split('.')[0]!r} not found"
        raise ConfigError("E-CONFIG-EXTENSION", message, hint=hint)
    with foreign_code(what):
        found = getattr(importlib.import_module(module), function)
    if not callable(found):
        raise ConfigError("E-CONFIG-EXTENSION", f"{what}: {function} is not a function")
    return found  # type: ignore[no-any-return]


@contextmanager
def foreign_code(what: str) -> Iterator[None]:
    """Convert any exception of third-party code to E-CONFIG-EXTENSION; its text stays private."""
    try:
        yield
    except FedelmyError:
        raise
    except (Exception, SystemExit) as error:
        message = f"{what} cannot be used: it raised {type(error).__name__}"
        private = f"{_location(error)}: {error}"
        raise ConfigError("E-CONFIG-EXTENSION", message, private=private) from error


def _location(error: BaseException) -> str:
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "unknown location"


class _Described(Protocol):
    @property
    def description(self) -> str:
        """One line for `--help`, `list` and the documentation."""


Row = TypeVar("Row", bound=_Described)
BUILT_IN: Final = "built in"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_TARGET: Final = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """One row of a listing."""

    name: str
    description: str
    """One line; for packages, their summary."""
    origin: str
    """`built in`, or the package and its version."""
    problem: str = ""
    """Why it cannot be used; empty if it can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Offer:
    """An entry point of a package."""

    name: str
    target: str
    summary: str
    origin: str


class Registry(Generic[Row]):
    """The names of one entry-point group."""

    def __init__(
        self, group: str, noun: str, built_in: Mapping[str, Row], make: Callable[[str, str], Row]
    ) -> None:
        """`make` turns a description and a target (`module` or `module:function`) into a row."""
        self.group = group
        self._noun = noun
        self._built_in = built_in
        self._make = make

    @property
    def names(self) -> list[str]:
        """All names that can be used."""
        return [*self._built_in, *(name for name in self._offers if not self._problem(name))]

    def find(self, name: str) -> Row | None:
        """Return the row of a name, or None if unknown; refuse a name of two packages."""
        if name in self._built_in:
            return self._built_in[name]
        if not _NAME.fullmatch(name) or name not in self._offers:
            return None
        if problem := self._problem(name):
            message = f"{self._noun} {name!r} cannot be used: {problem}"
            raise ConfigError("E-CONFIG-EXTENSION", message)
        offer = self._offers[name][0]
        return self._make(offer.summary, offer.target)

    def origin(self, name: str) -> str:
        """Return `BUILT_IN`, or the package and its version; empty if unknown."""
        if name in self._built_in:
            return BUILT_IN
        return self._offers[name][0].origin if name in self._offers else ""

    def load(self, name: str, target: str, has: Sequence[str] = ()) -> Any:
        """Import a row's target and check its attributes; errors name the package."""
        with self.foreign(name):
            found = resolve(target)
        missing = [part for part in has if not hasattr(found, part)]
        if missing:
            message = f"{self._described(name)} has no {', '.join(missing)}"
            raise ConfigError("E-CONFIG-EXTENSION", message)
        return found

    def foreign(self, name: str) -> AbstractContextManager[None]:
        """Return the context for calls into a package's code; built-in code needs none."""
        return nullcontext() if name in self._built_in else foreign_code(self._described(name))

    def _described(self, name: str) -> str:
        return f"{self._noun} {name!r} of package {self.origin(name)}"

    def listing(self) -> Iterator[Listed]:
        """List all names, built-in first, including unusable ones with the reason."""
        for name, row in self._built_in.items():
            yield Listed(name=name, description=row.description, origin=BUILT_IN)
        for name, offers in self._offers.items():
            for offer in offers:
                found = "" if is_importable(offer.target) else "its module is missing"
                yield Listed(
                    name=clean(name, 64),
                    description=offer.summary,
                    origin=offer.origin,
                    problem=self._problem(name) or found,
                )

    def _problem(self, name: str) -> str:
        offers = self._offers[name]
        if name in self._built_in:
            return "the name is built in"
        if not _NAME.fullmatch(name):
            return "name must have 1 to 64 lower-case letters, digits, dots, hyphens, underscores"
        if len(offers) > 1:
            packages = ", ".join(sorted(offer.origin for offer in offers))
            return f"several packages provide this name: {packages}"
        if not _TARGET.fullmatch(offers[0].target):
            return "its entry point is neither `module` nor `module:function`"
        return ""

    @cached_property
    def _offers(self) -> Mapping[str, list[_Offer]]:
        """The entry points of this group, read once per process."""
        from importlib import metadata  # keeps 1 MB out of an idle daemon

        offers: dict[str, list[_Offer]] = {}
        seen: set[str] = set()
        for distribution in metadata.distributions():
            try:
                package = str(distribution.metadata["Name"])
                if package.lower() in seen:
                    continue  # a second copy later on the path; imports find the first as well
                seen.add(package.lower())
                found = [
                    _offer(distribution, point.name, point.value)
                    for point in distribution.entry_points
                    if point.group == self.group
                ]
            except (KeyError, TypeError, ValueError, AttributeError, OSError):
                continue  # broken metadata
            for offer in found:
                offers.setdefault(offer.name, []).append(offer)
        return dict(sorted(offers.items()))


def _offer(distribution: Distribution, name: str, target: str) -> _Offer:
    about = distribution.metadata
    summary = clean(str(about["Summary"] or ""), 200) if "Summary" in about else ""
    origin = clean(f"{about['Name']} {distribution.version}", 100)
    summary = summary or "(no summary)"
    return _Offer(name=name, target=target, summary=summary, origin=origin)


def resolve(target: str) -> Any:
    """Import the module, or the object in a module, that a target names."""
    import importlib

    module, colon, attribute = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split(".") if colon else ():
        found = getattr(found, part)
    return found
