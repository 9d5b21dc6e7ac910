"""Operators who watch one run: started by bench/watching.py.

    python bench/ends/watchers.py ADDRESS SITE IDENTITY RUN COUNT

Commands come on the standard input, one per line, and each is answered with one line:

    on SEQ     open COUNT streams, each on a connection of its own, for events after SEQ   "on" off
    close them                                          "off [first and last event of each, how
    many]"
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from pathlib import Path

from fedelmy_node.domain.errors import FedelmyError
from fedelmy_node.domain.names import Address, RunId, SiteName
from fedelmy_node.identity import keystore
from fedelmy_node.rpc.channel import open_channel
from fedelmy_node.rpc.clients import OperatorClient


class Watcher:
    """One stream, on a thread of its own."""

    def __init__(self, client: OperatorClient, run: str, after: int) -> None:
        self.seen: list[int] = []
        self._client = client
        self._thread = threading.Thread(target=self._watch, args=(RunId(run), after))
        self._thread.start()

    def _watch(self, run: RunId, after: int) -> None:
        with contextlib.suppress(FedelmyError):  # its end: the connection is closed
            for event in self._client.watch(run, after):
                self.seen.append(event.seq)

    def close(self) -> tuple[int, int, int]:
        self._client.close()
        self._thread.join()
        return (self.seen[0], self.seen[-1], len(self.seen)) if self.seen else (0, 0, 0)


def main() -> None:
    address, site, identity, run, count = sys.argv[1:]
    operator = keystore.load(Path(identity))
    watchers: list[Watcher] = []
    for line in sys.stdin:
        word, _, after = line.strip().partition(" ")
        if word == "on":
            for _ in range(int(count)):
                channel = open_channel(
                    Address(address), operator, expect_role="site", expect_site=SiteName(site)
                )
                watchers.append(Watcher(OperatorClient(channel, site), run, int(after)))
            print("on", flush=True)
        else:
            print("off", json.dumps([watcher.close() for watcher in watchers]), flush=True)
            watchers = []


if __name__ == "__main__":
    main()
