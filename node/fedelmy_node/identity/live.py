"""An identity that follows its files while a daemon runs: rotation and revocation need no restart."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Final

from fedelmy_node.errors import FedelmyError
from fedelmy_node.identity.files import stamp
from fedelmy_node.identity.keystore import FILES, Identity, install_lists, load, look_at
from fedelmy_node.identity.rules import TrustRules

__all__ = ["LiveIdentity"]

logger = logging.getLogger(__name__)

_REMIND_SECONDS: Final = 86_400.0


class LiveIdentity:
    """An identity that follows its files, so that rotation and revocation count without a restart.

    Called, it gives the identity of the moment. Damaged files are logged and the old identity kept: it is
    still valid, or else peers refuse it and say so. Once a day it says what should be seen to, when it is used.
    """

    def __init__(self, directory: Path, rules: TrustRules | None = None) -> None:
        self._directory = directory
        self._rules = rules or TrustRules()
        self._lock = threading.Lock()
        self._followed = [str(directory / name) for name in FILES]
        self._seen = self._look()  # before loading: a renewal in between is then noticed at the next call
        self._identity = load(directory, self._rules)
        self._reminded = float("-inf")

    def __call__(self) -> Identity:
        with self._lock:
            seen = self._look()
            if seen != self._seen:
                self._seen = seen
                self._reload()
            if time.monotonic() - self._reminded >= _REMIND_SECONDS:
                self._reminded = time.monotonic()
                for warning in self._identity.warnings():
                    logger.warning("%s", warning)
            return self._identity

    def take_lists(self, pem: bytes, origin: str) -> int:
        """Put revocation lists into force at once; returns the number that is in force of the first one's authority.

        An older list than ours is no error: whoever brings it learns from the number that he has missed something.
        """
        trust = self().trust
        first = trust.offered(pem, origin)[0][0]
        if first.number > trust.number(first.issuer):
            install_lists(self._directory, pem, origin)
            logger.info("revocation list %d of %s came from %s", first.number, first.issuer.rfc4514_string(), origin)
        return self().trust.number(first.issuer)

    def _look(self) -> tuple[tuple[int, int], ...]:
        return tuple(map(stamp, self._followed))

    def _reload(self) -> None:
        try:
            self._identity = look_at(self._directory, self._rules)
            if self._look() != self._seen:  # files changed meanwhile: both halves must be of one moment
                self._seen = self._look()
                self._identity = look_at(self._directory, self._rules)
        except FedelmyError as error:
            logger.error("changed identity not used: %s", error.code, extra={"private": error.whole})
        else:
            if self._identity.flaw is not None:
                logger.error("others will refuse this site: %s", self._identity.flaw)
            numbers = ", ".join(str(one.number) for one in self._identity.trust.lists) or "none"
            logger.info(
                "changed identity in use, valid until %s, revocation lists: %s",
                self._identity.not_after.isoformat(),
                numbers,
            )
