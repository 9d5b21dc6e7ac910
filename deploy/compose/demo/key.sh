#!/bin/sh
# A site, before it is certified: its key is made in its own volume and stays there; the request goes to the exchange.
set -eu
if [ ! -e "$FEDELMY_STATE/identity/key.pem" ]; then
    fedelmy-node identity init --site "$SITE"
fi
cp "$FEDELMY_STATE/identity/request.csr" "/exchange/$SITE.csr"
