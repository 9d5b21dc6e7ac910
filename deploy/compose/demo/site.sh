#!/bin/sh
# A site: create key, certificate and data the first time, then serve.
set -eu
. /demo/identity.sh
certified site "$SITE"
# Its uneven quarter of scikit-learn's digits (Dirichlet 0.5). A real site has its own data.
if [ ! -e "$FEDELMY_STATE/shard.json" ]; then
    fedelmy-launch partition digits --site north --site east --site south --site west \
        --alpha 0.5 --seed 0 --out /tmp/parts
    cp "/tmp/parts/$SITE.json" "$FEDELMY_STATE/.shard"
    mv "$FEDELMY_STATE/.shard" "$FEDELMY_STATE/shard.json"
    rm -r /tmp/parts
fi
# exec, so that signals reach the node.
exec fedelmy-node serve --data digits --indices "$FEDELMY_STATE/shard.json"
