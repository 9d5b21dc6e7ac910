#!/bin/sh
# The digits of scikit-learn as the data of four sites, unevenly (Dirichlet 0.5); each site mounts its own part alone.
set -eu
fedelmy-launch partition digits --site north --site east --site south --site west --alpha 0.5 --seed 0 --out /tmp/parts
for site in north east south west; do
    cp "/tmp/parts/$site.json" "/shards/$site/indices.json"
done
