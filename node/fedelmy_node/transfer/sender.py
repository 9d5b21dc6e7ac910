"""The sending end of an edge: deliver one bundle to the next site, retrying until it succeeds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from fedelmy_node.domain.artifact import Parcel, Receipt
from fedelmy_node.domain.blocks import SMALLEST_BLOCK_BYTES
from fedelmy_node.domain.errors import (
    BundleError,
    ConsentError,
    FedelmyError,
    InternalError,
    PeerError,
    StoreError,
    TransferError,
)
from fedelmy_node.domain.plan_steps import Edge
from fedelmy_node.domain.retry_pauses import TRANSFER_PAUSES, Backoff
from fedelmy_node.peers.connections import TransferSlots
from fedelmy_node.store.durable_files import check_intact

logger = logging.getLogger(__name__)

_PROGRESS_SECONDS: Final = 1.0
"""Shortest time between two progress events."""
_FINAL_CODES: Final = frozenset(
    {"E-PEER-CONTRACT", "E-TRANSFER-SIZE", "E-TRANSFER-OFFER", "E-TRANSFER-CONFLICT"}
)
_DOUBTFUL_CODES: Final = frozenset({"E-STORE-DAMAGED", "E-TRANSFER-HASH", "E-PEER-PROTOCOL"})


@dataclass(frozen=True, slots=True)
class Started:
    """An attempt begins: a transfer slot is free."""


@dataclass(frozen=True, slots=True)
class BytesSent:
    size: int
    """Bytes of the bundle so far."""


@dataclass(frozen=True, slots=True)
class Retrying:
    """An attempt failed; the next one follows after `wait_seconds`."""

    error: FedelmyError
    wait_seconds: float


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver has verified, synced and journaled the bundle."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Unneeded:
    """The receiver got its input from elsewhere."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The receiver will never accept the bundle."""

    error: FedelmyError


SenderEvent = Started | BytesSent | Retrying | Delivered | Unneeded | Refused


class _DamageError(StoreError):
    """The sender's own file is damaged: retrying cannot help."""


class Connection(Protocol):
    """A connection to the receiver."""

    def deliver(self, parcel: Parcel, moved: Callable[[int], None]) -> Receipt:
        """`moved` gets the bytes that the receiver already has, then the bytes sent so far."""
        ...

    def close(self) -> None: ...


class Sender:
    """One edge's transfer, on its own thread; `notify` is called on that thread."""

    def __init__(
        self,
        edge: Edge,
        parcel: Parcel,
        connect: Callable[[], Connection],
        notify: Callable[[SenderEvent], None],
        slots: TransferSlots,
    ) -> None:
        self.edge = edge
        self.offer: Final = parcel.offer
        """The first offer; later attempts may have smaller blocks."""
        self._parcel, self._slots = parcel, slots
        self._connect, self._notify = connect, notify
        self._stopped, self._wake = threading.Event(), threading.Event()
        self._notified_at = 0.0
        self._progressed = False
        self._begun_at: int | None = None
        """Bytes at the receiver when this attempt began; None until it answers."""
        self._before: tuple[int, int] | None = None
        """The same for the last attempt that was answered, and its block size."""
        self._thread = threading.Thread(target=self._run, name=f"sender {edge.id}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Give up at the next pause, and send no more events."""
        self._stopped.set()
        self._wake.set()
        self._slots.wake()

    def hurry(self) -> None:
        """Start the next attempt now: the receiver is reachable again."""
        self._wake.set()

    def _run(self) -> None:
        backoff = Backoff(TRANSFER_PAUSES)
        while not self._stopped.is_set():
            with self._slots.taken(self._stopped) as mine:
                if mine:
                    self._notify(Started())
                begun, self._progressed, self._begun_at = time.monotonic(), False, None
                outcome = (self._damage() or self._attempt()) if mine else None
            if self._stopped.is_set() or outcome is None:
                return
            if isinstance(outcome, Receipt):
                self._notify(Delivered(time.monotonic() - begun))
                return
            if outcome.code == "E-TRANSFER-UNNEEDED":
                self._notify(Unneeded())
                return
            if _is_final(outcome):
                self._notify(Refused(outcome))
                return
            if self._progressed:
                backoff.reset()  # a link that breaks now and then is not down
            pause = backoff.next_delay()
            self._notify(Retrying(outcome, round(pause, 1)))
            if self._wake.wait(pause):
                self._wake.clear()

    def _damage(self, *, check_digest: bool = False) -> _DamageError | None:
        """Check the size of our own file or, if that is in doubt, its digest."""
        offer, path = self._parcel.offer, self._parcel.path
        size = None if check_digest else offer.size
        try:
            check_intact(path, offer.sha256, "the bundle", size=size)
        except StoreError as error:
            return _DamageError(error.code, error.message, private=error.private)
        except OSError:
            pass  # the attempt to send it reports this
        return None

    def _attempt(self) -> Receipt | FedelmyError:
        """Try once, on a separate connection, so that no other transfer can break it."""
        try:
            connection = self._connect()
            try:
                return connection.deliver(self._parcel, self._moved)
            finally:
                connection.close()
        except FedelmyError as error:
            # A receiver may reject the bundle because our file was damaged after it was written.
            doubtful = isinstance(error, BundleError) or error.code in _DOUBTFUL_CODES
            return (self._damage(check_digest=True) if doubtful else None) or error
        except Exception:  # an internal error must not lose the edge
            extra = {"run": self._parcel.offer.run, "step": self.edge.source}
            logger.exception("internal error while sending %s", self.edge.id, extra=extra)
            return InternalError("E-INTERNAL", "sending failed; see the node's log")

    def _answered(self, size: int) -> None:
        """Halve the block size if the previous attempt delivered no whole block.

        Receivers keep whole blocks only: a link that breaks more often would never make progress.
        """
        offer, before = self._parcel.offer, self._before
        self._begun_at, self._before = size, (size, offer.block_bytes)
        if before is None or size > before[0]:
            return
        smaller = max(SMALLEST_BLOCK_BYTES, before[1] // 2)
        if smaller < offer.block_bytes:
            extra = {"run": offer.run, "step": self.edge.source}
            text = "no progress on %s: retrying with blocks of %d KiB"
            logger.info(text, self.edge.id, smaller >> 10, extra=extra)
            self._parcel = replace(self._parcel, offer=replace(offer, block_bytes=smaller))

    def _moved(self, size: int) -> None:
        if self._begun_at is None:
            self._answered(size)
        self._progressed |= size > (self._begun_at or 0)
        now = time.monotonic()
        due = now - self._notified_at >= _PROGRESS_SECONDS
        if size and due and not self._stopped.is_set():
            self._notified_at = now
            self._notify(BytesSent(size))


def _is_final(error: FedelmyError) -> bool:
    """Whether a retry can never help; any other problem may pass, even an outage of days.

    Not final: a run that is unknown, cancelled or aborted there (the peer watch reports that), and
    an approval that is still pending.
    """
    if error.code == "E-CONSENT-APPROVAL":
        return False
    if isinstance(error, ConsentError | BundleError | _DamageError):
        return True
    return isinstance(error, PeerError | TransferError) and error.code in _FINAL_CODES
