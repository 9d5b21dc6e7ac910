"""Operators who watch one run: started by bench/watching.py with the node's address, and prints how many events came.

python bench/ends/watchers.py ADDRESS SITE IDENTITY RUN COUNT
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from fedelmy_node.domain.names import Address, RunId, SiteName
from fedelmy_node.identity import keystore
from fedelmy_node.rpc.clients import OperatorClient
from fedelmy_node.rpc.dial import open_channel


def main() -> None:
    address, site, identity, run, count = sys.argv[1:]
    operator, seen = keystore.load(Path(identity)), [0] * int(count)
    clients = [
        OperatorClient(open_channel(Address(address), operator, expect_role="site", expect_site=SiteName(site)), site)
        for _ in seen
    ]

    def watch(number: int) -> None:
        for _ in clients[number].watch(RunId(run), 0):
            seen[number] += 1

    threads = [threading.Thread(target=watch, args=(number,)) for number in range(len(seen))]
    for thread in threads:
        thread.start()
    print("watching", flush=True)
    for thread in threads:
        thread.join()
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
