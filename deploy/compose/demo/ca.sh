#!/bin/sh
# The operator's CA: founds the federation, certifies each request as it comes, and ends with the last one. In earnest each
# fingerprint is compared on the phone before; here only the containers of this file can write to the exchange.
set -eu
trap 'exit 143' TERM INT
export FEDELMY_CA="$FEDELMY_STATE/federation-ca"
if [ ! -e "$FEDELMY_CA" ]; then
    fedelmy-launch ca init --operator founder
fi
for name in north.site east.site south.site west.site dashboard.operator operator.operator; do
    role=${name#*.}
    until [ -e "/exchange/$name.csr" ]; do
        sleep 0.2
    done
    if [ ! -e "/exchange/$name.pem" ]; then
        if [ "$role" = operator ]; then set -- --operator; else set --; fi
        fedelmy-launch ca sign "/exchange/$name.csr" --out "/exchange/$name.pem" --yes "$@"
    fi
done
