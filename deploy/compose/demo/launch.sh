#!/bin/sh
# The operator: wait until every site answers, run the federation and write the report.
set -eu
. /demo/identity.sh
certified operator operator
export FEDELMY_IDENTITY="$FEDELMY_STATE/identity"

child=
trap 'kill $child; exit 143' TERM INT
attended() { # a shell with a foreground child does not handle signals
    "$@" &
    child=$!
    wait "$child"
}

# Compose waits until the sites are healthy; podman before 4.6 cannot, and starts this at once.
tries=${TRIES:-120}
until found=$(fedelmy-launch discover north:50051 2>&1) && [ -w /out ]; do
    tries=$((tries - 1))
    if [ "$tries" -le 0 ]; then
        echo "$found" >&2
        exit 1
    fi
    sleep 1
done
echo "$found"
# While four trainers load torch at once, a small machine may answer a neighbour too late (exit code
# 6). Nothing has started then, so try again.
for try in 1 2 3; do
    code=0
    attended fedelmy-launch run /demo/federation.toml || code=$?
    if [ "$code" -ne 6 ]; then
        break
    fi
done
# A failed run has a report as well.
attended fedelmy-launch report /demo/federation.toml --out /out/report.html || true
exit "$code"
