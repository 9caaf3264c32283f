#!/usr/bin/env bash
# Gateways, used by real clients (curl, rclone, aws, libnfs): run.sh, with VELLUM (the binary, with vellum-serve beside it) and TOOLS
# (where the tests' own programs are kept). aws is installed there once, from PyPI, in the version of the lock file.
set -euo pipefail
cd "$(dirname "$0")"

: "${VELLUM:?the binary}" "${TOOLS:?a directory for tools}"
for client in curl rclone nfs-ls; do
    command -v "$client" > /dev/null || { echo "tests/gateways needs $client"; exit 2; }
done
python=$TOOLS/gateways
stamp=$(sha256sum < requirements.txt)
if [ "$(cat "$python/stamp" 2> /dev/null)" != "$stamp" ]; then
    rm -rf "$python"
    python3 -m venv "$python"
    "$python/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
    echo "$stamp" > "$python/stamp"
fi
AWS=$python/bin/aws PYTHONDONTWRITEBYTECODE=1 python3 -m unittest "${@:-discover}"
