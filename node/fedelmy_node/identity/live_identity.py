"""An identity that reloads its files while the daemon runs."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Final

from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.subject import TrustRules
from fedelmy_node.identity import keystore
from fedelmy_node.identity.keys import stamp
from fedelmy_node.identity.keystore import FILES, Identity, load, load_unchecked

logger = logging.getLogger(__name__)

_REMIND_SECONDS: Final = 86_400.0


class LiveIdentity:
    """Returns the current identity when called; rotation and revocation need no restart.

    If the new files are damaged, it logs that and keeps the old identity: either that is still
    valid, or peers refuse it with an error. Warnings are logged at most once a day.
    """

    def __init__(self, directory: Path, rules: TrustRules | None = None) -> None:
        self._directory = directory
        self._rules = rules or TrustRules()
        self._lock = threading.Lock()
        self._followed = [str(directory / name) for name in FILES]
        self._seen = self._stamps()  # before loading, so that no change in between is missed
        self._identity = load(directory, self._rules)
        self._reminded = float("-inf")

    def __call__(self) -> Identity:
        with self._lock:
            seen = self._stamps()
            if seen != self._seen:
                self._seen = seen
                self._reload()
            if time.monotonic() - self._reminded >= _REMIND_SECONDS:
                self._reminded = time.monotonic()
                for warning in self._identity.warnings():
                    logger.warning("%s", warning)
            return self._identity

    def install_lists(self, pem: bytes, origin: str) -> int:
        """Install revocation lists and return the current number of the first list's CA.

        An older list is not an error: the number tells the caller that a newer one exists.
        """
        trust = self().trust
        first = trust.offered(pem, origin)[0][0]
        if first.number > trust.number(first.issuer):
            keystore.install_lists(self._directory, pem, origin)
            issuer = first.issuer.rfc4514_string()
            logger.info("installed revocation list %d of %s from %s", first.number, issuer, origin)
        return self().trust.number(first.issuer)

    def _stamps(self) -> tuple[tuple[int, int], ...]:
        return tuple(map(stamp, self._followed))

    def _reload(self) -> None:
        try:
            self._identity = load_unchecked(self._directory, self._rules)
            if (
                self._stamps() != self._seen
            ):  # changed while reading: key and certificate must match
                self._seen = self._stamps()
                self._identity = load_unchecked(self._directory, self._rules)
        except FedelmyError as error:
            private = {"private": error.whole}
            logger.error("new identity not used: %s", error.code, extra=private)
        else:
            if self._identity.flaw is not None:
                logger.error("peers will refuse this site: %s", self._identity.flaw)
            numbers = ", ".join(str(one.number) for one in self._identity.trust.lists) or "none"
            expiry = self._identity.not_after.isoformat()
            logger.info("new identity in use until %s, revocation lists: %s", expiry, numbers)
