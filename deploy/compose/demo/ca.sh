#!/bin/sh
# The operator's CA: signs each request as it arrives, and exits after the last one. In a real
# federation, compare each fingerprint on the phone first; here only our containers can write to the
# exchange.
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
