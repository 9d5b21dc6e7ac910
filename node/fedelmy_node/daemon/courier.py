"""The sending end of an edge: bring one bundle to the next site, however long that takes, whenever it is its turn."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from fedelmy_node.daemon.turns import Turns
from fedelmy_node.domain.plan import Edge
from fedelmy_node.domain.transfer import SMALLEST_BLOCK_BYTES, Parcel, Receipt
from fedelmy_node.durable import check_intact
from fedelmy_node.errors import (
    BundleError,
    ConsentError,
    FedelmyError,
    InternalError,
    PeerError,
    StoreError,
    TransferError,
)

__all__ = ["Courier", "Carrier", "Begins", "Moved", "Retrying", "Delivered", "Unneeded", "Refused", "News"]

logger = logging.getLogger(__name__)

_FIRST_WAIT_SECONDS: Final = 0.5
_LONGEST_WAIT_SECONDS: Final = 60.0
_NEWS_SECONDS: Final = 1.0
"""Progress is told at most this often."""
_FINAL_CODES: Final = frozenset({"E-PEER-CONTRACT", "E-TRANSFER-SIZE", "E-TRANSFER-OFFER", "E-TRANSFER-CONFLICT"})


@dataclass(frozen=True, slots=True)
class Begins:
    """Its turn has come: the first attempt begins."""


@dataclass(frozen=True, slots=True)
class Moved:
    """So many bytes of the bundle are on their way."""

    size: int


@dataclass(frozen=True, slots=True)
class Retrying:
    """It did not work, and will be tried again."""

    error: FedelmyError
    wait_seconds: float


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver has it: verified, synced and journaled."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Unneeded:
    """The receiver has no use for it: its need was met on another way."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The receiver will never take it."""

    error: FedelmyError


News = Begins | Moved | Retrying | Delivered | Unneeded | Refused


class _DamageError(StoreError):
    """Our own file is not what it was: no receiver can help that."""


class Carrier(Protocol):
    """A connection to the receiver, as far as a courier needs it."""

    def deliver(self, parcel: Parcel, moved: Callable[[int], None]) -> Receipt:
        """`moved` hears how many bytes the receiver has, then how many have been sent."""
        ...

    def close(self) -> None: ...


class Courier:
    """One edge's hand-over, on a thread of its own; `tell` is called on that thread."""

    def __init__(
        self,
        edge: Edge,
        parcel: Parcel,
        connect: Callable[[], Carrier],
        tell: Callable[[News], None],
        turns: Turns,
    ) -> None:
        self.edge = edge
        self._turns = turns
        self.offer: Final = parcel.offer
        """As it was begun; later attempts may have smaller blocks."""
        self._parcel = parcel
        self._connect = connect
        self._tell = tell
        self._stopped = threading.Event()
        self._roused = threading.Event()
        self._told_at = 0.0
        self._progressed = False
        self._begun_at: int | None = None
        """Bytes that the receiver had when this attempt began; None: it has not said."""
        self._before: tuple[int, int] | None = None
        """The same of the last attempt that it answered, and the size of its blocks."""
        self._thread = threading.Thread(target=self._run, name=f"courier {edge.id}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Give up at the next pause; nothing more is told."""
        self._stopped.set()
        self._roused.set()
        self._turns.look_again()

    def hurry(self) -> None:
        """The receiver is there: the next attempt begins now."""
        self._roused.set()

    def _run(self) -> None:
        wait, first = _FIRST_WAIT_SECONDS, True
        while not self._stopped.is_set():
            with self._turns.taken(self._stopped) as mine:
                if first and mine:
                    first = False
                    self._tell(Begins())
                begun, self._progressed, self._begun_at = time.monotonic(), False, None
                outcome = (self._damage() or self._attempt()) if mine else None
            if self._stopped.is_set() or outcome is None:
                return
            if isinstance(outcome, Receipt):
                self._tell(Delivered(time.monotonic() - begun))
                return
            if outcome.code == "E-TRANSFER-UNNEEDED":
                self._tell(Unneeded())
                return
            if _is_final(outcome):
                self._tell(Refused(outcome))
                return
            if self._progressed:
                wait = _FIRST_WAIT_SECONDS  # a link that breaks now and then is not one that is down
            pause = wait * random.uniform(0.75, 1.25)
            self._tell(Retrying(outcome, round(pause, 1)))
            if self._roused.wait(pause):
                self._roused.clear()
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    def _damage(self, *, look_inside: bool = False) -> _DamageError | None:
        """What is wrong with our own file: gone, of another size or, where that is in doubt, of another digest."""
        offer = self._parcel.offer
        try:
            check_intact(self._parcel.path, offer.sha256, "the bundle", size=None if look_inside else offer.size)
        except StoreError as error:
            return _DamageError(error.code, error.message, private=error.private)
        except OSError:
            pass  # trying to send it will tell
        return None

    def _attempt(self) -> Receipt | FedelmyError:
        """One try on a connection of its own, so that no other hand-over can break it."""
        try:
            carrier = self._connect()
            try:
                return carrier.deliver(self._parcel, self._moved)
            finally:
                carrier.close()
        except FedelmyError as error:
            # Also what a receiver says of the bundle: the file may have been damaged since it was written.
            codes = ("E-STORE-DAMAGED", "E-TRANSFER-HASH", "E-PEER-PROTOCOL")
            doubtful = isinstance(error, BundleError) or error.code in codes
            return (self._damage(look_inside=True) if doubtful else None) or error
        except Exception:  # an edge must not be forgotten because of a fault
            extra = {"run": self._parcel.offer.run, "step": self.edge.source}
            logger.exception("fault while handing %s over", self.edge.id, extra=extra)
            return InternalError("E-INTERNAL", "handing over met a fault; see the node's log")

    def _answered(self, size: int) -> None:
        """The receiver has so much of it. If the attempt before brought nothing, the next one has smaller blocks.

        What arrives is kept in whole blocks: a link that is cut before one has crossed would never get on.
        """
        offer, before = self._parcel.offer, self._before
        self._begun_at, self._before = size, (size, offer.block_bytes)
        smaller = max(SMALLEST_BLOCK_BYTES, before[1] // 2) if before and size <= before[0] else offer.block_bytes
        if smaller < offer.block_bytes:
            extra = {"run": offer.run, "step": self.edge.source}
            logger.info("%s does not get on: next, blocks of %d KiB", self.edge.id, smaller >> 10, extra=extra)
            self._parcel = replace(self._parcel, offer=replace(offer, block_bytes=smaller))

    def _moved(self, size: int) -> None:
        if self._begun_at is None:
            self._answered(size)
        self._progressed |= size > (self._begun_at or 0)
        if not size:
            return
        now = time.monotonic()
        if now - self._told_at >= _NEWS_SECONDS and not self._stopped.is_set():
            self._told_at = now
            self._tell(Moved(size))


def _is_final(error: FedelmyError) -> bool:
    """Whether trying again can never help; everything else may pass, be it an outage of days.

    That a run is unknown there, cancelled or aborted, is not ours to act on: the operator's word, or the neighbour's,
    comes by way of the lookout. An administrator who has not decided yet may still agree.
    """
    if error.code == "E-CONSENT-APPROVAL":
        return False
    if isinstance(error, ConsentError | BundleError | _DamageError):
        return True
    return isinstance(error, PeerError | TransferError) and error.code in _FINAL_CODES
