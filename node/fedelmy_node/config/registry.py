"""What can be chosen by name: the rows that fedelmy brings, and those that installed packages add.

A package adds rows by entry points: `[project.entry-points."fedelmy.models"]` in its pyproject.toml. Its metadata are
looked at only when a name is not one of ours, or when everything is listed; its code is imported only when it is used.
A package that is broken takes nothing else with it, and none can take the place of a name of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from fedelmy_node.config.code import foreign_code, is_importable
from fedelmy_node.domain.texts import clean
from fedelmy_node.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import Distribution

__all__ = ["BUILT_IN", "Listed", "Registry", "resolve"]


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
    """One name as it is listed."""

    name: str
    description: str
    """One line: ours, or the summary of the package."""
    origin: str
    """`built in`, or the package and its version."""
    problem: str = ""
    """Why it cannot be chosen; empty: it can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Offer:
    """An entry point of a package."""

    name: str
    target: str
    summary: str
    origin: str


class Registry(Generic[Row]):
    """The rows of one group, by name."""

    def __init__(self, group: str, noun: str, built_in: Mapping[str, Row], make: Callable[[str, str], Row]) -> None:
        """`make` turns a description and a target (`module` or `module:function`) into a row."""
        self.group = group
        self._noun = noun
        self._built_in = built_in
        self._make = make

    @property
    def names(self) -> list[str]:
        """Everything that can be chosen."""
        return [*self._built_in, *(name for name in self._offers if not self._problem(name))]

    def find(self, name: str) -> Row | None:
        """The row of a name; None: nobody has it. A name that two packages have is refused."""
        if name in self._built_in:
            return self._built_in[name]
        if not _NAME.fullmatch(name) or name not in self._offers:
            return None
        if problem := self._problem(name):
            raise ConfigError("E-CONFIG-EXTENSION", f"{self._noun} {name!r} cannot be used: {problem}")
        offer = self._offers[name][0]
        return self._make(offer.summary, offer.target)

    def origin(self, name: str) -> str:
        """Whose a name is: `BUILT_IN`, a package and its version, or nothing if nobody has it."""
        if name in self._built_in:
            return BUILT_IN
        return self._offers[name][0].origin if name in self._offers else ""

    def load(self, name: str, target: str, has: Sequence[str] = ()) -> Any:
        """What a row's target names; a package that cannot be imported, or lacks what it must have, is named."""
        with self.foreign(name):
            found = resolve(target)
        missing = [part for part in has if not hasattr(found, part)]
        if missing:
            message = f"{self._noun} {name!r} of package {self.origin(name)} has no {', '.join(missing)}"
            raise ConfigError("E-CONFIG-EXTENSION", message)
        return found

    def foreign(self, name: str) -> AbstractContextManager[None]:
        """A context for calls into a package's code: see `foreign_code`. Faults of ours stay faults."""
        if name in self._built_in:
            return nullcontext()
        return foreign_code(f"{self._noun} {name!r} of package {self.origin(name)}")

    def listing(self) -> Iterator[Listed]:
        """Ours first; then what packages offer, also what cannot be chosen, with the reason."""
        for name, row in self._built_in.items():
            yield Listed(name=name, description=row.description, origin=BUILT_IN)
        for name, offers in self._offers.items():
            for offer in offers:
                problem = self._problem(name) or ("" if is_importable(offer.target) else "its module is not there")
                yield Listed(name=clean(name, 64), description=offer.summary, origin=offer.origin, problem=problem)

    def _problem(self, name: str) -> str:
        offers = self._offers[name]
        if name in self._built_in:
            return "a built-in one has this name"
        if not _NAME.fullmatch(name):
            return "its name must have 1 to 64 lower-case letters, digits, dots, hyphens and underscores"
        if len(offers) > 1:
            return f"several packages have this name: {', '.join(sorted(offer.origin for offer in offers))}"
        if not _TARGET.fullmatch(offers[0].target):
            return "its entry point is neither `module` nor `module:function`"
        return ""

    @cached_property
    def _offers(self) -> Mapping[str, list[_Offer]]:
        """What installed packages have in this group; a process sees the packages of its start."""
        from importlib import metadata  # a megabyte that an idle daemon does not need

        offers: dict[str, list[_Offer]] = {}
        seen: set[str] = set()
        for distribution in metadata.distributions():
            try:
                package = str(distribution.metadata["Name"])
                if package.lower() in seen:
                    continue  # another copy, later on the path: imports find the first one, too
                seen.add(package.lower())
                found = [_offer(distribution, point.name, point.value) for point in distribution.entry_points
                         if point.group == self.group]  # fmt: skip
            except (KeyError, TypeError, ValueError, AttributeError, OSError):
                continue  # its metadata cannot be read, and so offer nothing
            for offer in found:
                offers.setdefault(offer.name, []).append(offer)
        return dict(sorted(offers.items()))


def _offer(distribution: Distribution, name: str, target: str) -> _Offer:
    about = distribution.metadata
    summary = clean(str(about["Summary"] or ""), 200) if "Summary" in about else ""
    origin = clean(f"{about['Name']} {distribution.version}", 100)
    return _Offer(name=name, target=target, summary=summary or "(its package says nothing about it)", origin=origin)


def resolve(target: str) -> Any:
    """The module that a target names, or what it names in a module."""
    import importlib

    module, colon, attribute = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split(".") if colon else ():
        found = getattr(found, part)
    return found
