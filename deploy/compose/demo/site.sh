#!/bin/sh
# A site: its key, its certificate and its data, the first time; then it serves.
set -eu
. /demo/identity.sh
certified site "$SITE"
# Its part of the digits of scikit-learn: a quarter, unevenly (Dirichlet 0.5). In earnest a site has data of its own.
if [ ! -e "$FEDELMY_STATE/shard.json" ]; then
    fedelmy-launch partition digits --site north --site east --site south --site west --alpha 0.5 --seed 0 --out /tmp/parts
    cp "/tmp/parts/$SITE.json" "$FEDELMY_STATE/.shard"
    mv "$FEDELMY_STATE/.shard" "$FEDELMY_STATE/shard.json"
    rm -r /tmp/parts
fi
exec fedelmy-node serve --data digits --indices "$FEDELMY_STATE/shard.json" # exec: signals reach the node
