#!/bin/sh
# The dashboard, with a certificate of its own: it could be anywhere.
set -eu
. /demo/identity.sh
certified operator dashboard
export FEDELMY_IDENTITY="$FEDELMY_STATE/identity"
exec python3 /demo/doorway.py --port "$PORT" /demo/federation.toml
