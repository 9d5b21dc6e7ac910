#!/bin/sh
# The dashboard, with its own certificate: it could run anywhere.
set -eu
. /demo/identity.sh
certified operator dashboard
export FEDELMY_IDENTITY="$FEDELMY_STATE/identity"
exec python3 /demo/doorway.py --port "$PORT" /demo/federation.toml
