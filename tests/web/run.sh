#!/usr/bin/env bash
# The page in Chromium: run.sh, with VELLUM (the binary, with vellum-serve beside it) and TOOLS (where the tests' own programs
# are kept). What is missing is installed there once, from PyPI and npm, in the versions of the lock files.
set -euo pipefail
cd "$(dirname "$0")"

: "${VELLUM:?the binary}" "${TOOLS:?a directory for tools}"
web=$TOOLS/web
stamp=$(cat requirements.txt package-lock.json | sha256sum)
if [ "$(cat "$web/stamp" 2> /dev/null)" != "$stamp" ]; then
    rm -rf "$web"
    python3 -m venv "$web/python"
    "$web/python/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
    mkdir -p "$web/node"
    cp package.json package-lock.json "$web/node"
    npm ci --silent --ignore-scripts --prefix "$web/node"
    echo "$stamp" > "$web/stamp"
fi
AXE=$web/node/node_modules/axe-core/axe.min.js PYTHONDONTWRITEBYTECODE=1 \
    "$web/python/bin/python" -m pytest -q -p no:cacheprovider "$@" .
