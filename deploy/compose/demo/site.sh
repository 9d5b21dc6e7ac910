#!/bin/sh
# A site: takes its certificate in, the first time, and serves. With exec, so that signals reach the node.
set -eu
if [ ! -e "$FEDELMY_STATE/identity/certificate.pem" ]; then
    fedelmy-node identity install "/exchange/$SITE.pem"
fi
exec fedelmy-node serve
