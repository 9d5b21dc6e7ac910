"""Resident memory of an idle daemon, compared with a bare Python that imports grpc.

    python -m bench.idle [--json]

Starts a real daemon over mutual TLS with data and a peer, but without a run, and reads its resident
memory once it is ready. Exits with 1 if it is above the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.e2e.support.testbed import Bed

SITE, PEER = "north", "south=127.0.0.1:9"
LIMIT_BYTES = 80e6
BARE = "import grpc, sys; print('ready', flush=True); sys.stdin.read()"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    options = parser.parse_args()
    daemon, bare = daemon_bytes(), bare_bytes()
    ratio = round(daemon / bare, 2)
    print(f"idle daemon      {daemon / 1e6:6.1f} MB (limit: {LIMIT_BYTES / 1e6:.0f} MB)")
    print(f"python and grpc  {bare / 1e6:6.1f} MB")
    print(f"ratio            {ratio:6.2f}")
    if options.json:
        row = {"daemon_bytes": daemon, "bare_bytes": bare, "ratio": ratio}
        print(json.dumps({"bench": "idle", "limit_bytes": LIMIT_BYTES, **row}))
    return int(daemon > LIMIT_BYTES)


def daemon_bytes() -> int:
    root = Path(tempfile.mkdtemp(prefix="fedelmy-idle-"))
    bed = Bed(root, (SITE,))
    try:
        bed.provision()
        process = bed.sites[SITE].start("--peer", PEER).process
        assert process is not None
        return resident_bytes(process.pid)
    finally:
        bed.close()
        shutil.rmtree(root)


def bare_bytes() -> int:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", BARE], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return resident_bytes(process.pid)  # leaving the context closes its input, which ends it


def resident_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
