#!/bin/sh
# The operator, once: founds the federation and certifies every request. In earnest each fingerprint is compared on the
# phone before; here nobody else can write to the exchange. The CA's own key is in a volume that nobody else mounts.
set -eu
ca=/ca/federation-ca
if [ ! -e "$ca" ]; then
    fedelmy-launch ca init --dir "$ca"
fi
for request in /exchange/*.csr; do
    site=$(basename "$request" .csr)
    if [ ! -e "/exchange/$site.pem" ]; then
        fedelmy-launch ca sign "$request" --dir "$ca" --out "/exchange/$site.pem" --yes
    fi
done
cp -R "$ca/operator/." /operator/ # what launcher and dashboard show: the operator's identity, not the CA
