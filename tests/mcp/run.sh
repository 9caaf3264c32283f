#!/usr/bin/env bash
# The tools for agents, driven by the official Python SDK: run.sh, with VELLUM (the binary, with vellum-serve beside it) and TOOLS
# (where the tests' own programs are kept). What is missing is installed there once, from PyPI, in the versions of the lock file.
set -euo pipefail
cd "$(dirname "$0")"

: "${VELLUM:?the binary}" "${TOOLS:?a directory for tools}"
python=$TOOLS/mcp
stamp=$(sha256sum < requirements.txt)
if [ "$(cat "$python/stamp" 2> /dev/null)" != "$stamp" ]; then
    rm -rf "$python"
    python3 -m venv "$python"
    "$python/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
    echo "$stamp" > "$python/stamp"
fi
PYTHONDONTWRITEBYTECODE=1 "$python/bin/python" -m pytest -q -p no:cacheprovider "$@" .
