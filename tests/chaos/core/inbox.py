"""The real inbox, on a journal and a disk in memory."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from fedelmy_node.domain.artifact import Offer
from fedelmy_node.domain.errors import RunError
from fedelmy_node.domain.names import RunId
from fedelmy_node.domain.plan_steps import Edge
from fedelmy_node.run.run_events import BundleReceived
from fedelmy_node.store.changes import Change
from fedelmy_node.store.records import Prepared, RunRecord
from fedelmy_node.transfer.inbox import Inbox
from tests.chaos.core.entries import InboxChanged
from tests.chaos.core.site import Bundle, Daemon, Site


class InputFile:
    """A received bundle on the disk of a site; stands in for its path."""

    def __init__(self, disk: dict[str, Bundle], name: str) -> None:
        self._disk, self._name = disk, name

    def write(self, bundle: Bundle) -> None:
        self._disk[self._name] = bundle

    def unlink(self, *, missing_ok: bool = False) -> None:
        assert missing_ok or self._name in self._disk
        self._disk.pop(self._name, None)

    def with_suffix(self, suffix: str) -> InputFile:
        return InputFile(self._disk, self._name + suffix)

    def exists(self) -> bool:
        return self._name in self._disk


class WholeReceiver:
    """Stands in for Receiver: there is one block, the whole bundle."""

    def __init__(self, edge: Edge, offer: Offer, target: InputFile) -> None:
        self.edge, self.offer, self.target = edge, offer, target
        self.gone = False
        self._bundle: Bundle | None = None

    def begin(self) -> int:
        return 0

    def claim(self, _: int) -> int:
        return 1

    def take(self, _: int, bundle: Bundle) -> None:
        self._bundle = bundle

    def complete(self, _: int) -> None:
        assert self._bundle is not None and self._bundle.sha256 == self.offer.sha256

    def store(self) -> None:
        assert self._bundle is not None
        self.target.write(self._bundle)

    def leave(self, _: int) -> None:
        self.gone = True

    def close(self) -> None:
        self.gone = True


class MemoryInbox(Inbox):
    """The inbox of one daemon."""

    def __init__(self, site: Site, daemon: Daemon, apply: Callable[[Site, Any], Any]) -> None:
        """`apply` applies what the inbox changes."""
        layout = SimpleNamespace(
            input=lambda _, edge: InputFile(site.disk, f"in {edge}"), free_bytes=lambda: 1 << 40
        )

        def received(_: RunId) -> None:
            daemon.posted.append((None, BundleReceived()))

        super().__init__(cast(Any, SiteJournal(site, apply)), cast(Any, layout), received)

    def _take_over(self, edge: Edge, offer: Offer, prepared: Prepared) -> Any:
        target = cast(Any, self._layout.input(offer.run, edge.id))
        receiver = WholeReceiver(edge, offer, target)
        self._receivers[offer.run, edge.id] = cast(Any, receiver)
        return receiver


class SiteJournal:
    """What the inbox needs of a journal."""

    def __init__(self, site: Site, apply: Callable[[Site, Any], Any]) -> None:
        self._site, self._apply = site, apply

    def find_run(self, _: RunId) -> RunRecord | None:
        return self._site.record

    def run(self, run: RunId) -> RunRecord:
        if self._site.record is None:
            raise RunError("E-RUN-UNKNOWN", f"unknown run {run}")
        return self._site.record

    def update(self, run: RunId, change: Callable[[RunRecord], tuple[list[Change], Any]]) -> Any:
        changes, rest = change(self.run(run))
        if changes:
            cause = "Inbox.begin" if rest is None else "Inbox.receive"
            self._apply(self._site, InboxChanged(cause, tuple(changes)))
        return rest
