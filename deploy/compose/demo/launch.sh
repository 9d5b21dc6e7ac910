#!/bin/sh
# The operator: waits until every site would take part, runs the federation to its end and writes the report.
# Compose has waited until the sites are healthy; engines that cannot (podman before 4.6) start this at once.
set -eu
patience=${PATIENCE:-120}
until found=$(fedelmy-launch check --quick /demo/federation.toml 2>&1); do
    patience=$((patience - 1))
    if [ "$patience" -le 0 ]; then
        echo "$found" >&2
        exit 1
    fi
    sleep 1
done
code=0
fedelmy-launch run /demo/federation.toml || code=$?
fedelmy-launch report /demo/federation.toml --out /out/report.html || true
exit "$code"
