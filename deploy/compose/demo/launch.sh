#!/bin/sh
# The operator: waits until every site answers, runs the federation to its end and writes the report.
set -eu
. /demo/identity.sh
certified operator operator
export FEDELMY_IDENTITY="$FEDELMY_STATE/identity"

child=
trap 'kill $child; exit 143' TERM INT
attended() { # a shell that waits in the foreground hears no signal
    "$@" &
    child=$!
    wait "$child"
}

# Compose has waited until the sites are healthy; engines that cannot (podman before 4.6) start this at once.
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
# While four trainers load torch at once, a small machine may answer a neighbour too late (exit code 6): nothing has
# started then, so it is asked again.
for try in 1 2 3; do
    code=0
    attended fedelmy-launch run /demo/federation.toml || code=$?
    if [ "$code" -ne 6 ]; then
        break
    fi
done
attended fedelmy-launch report /demo/federation.toml --out /out/report.html || true # a run that failed has one, too
exit "$code"
