#!/usr/bin/env bash
# Gateways, used by real clients (curl, rclone): run.sh, with VELLUM (the binary, with vellum-serve beside it). It needs nothing
# else than Python's standard library and these clients.
set -euo pipefail
cd "$(dirname "$0")"

: "${VELLUM:?the binary}"
for client in curl rclone; do
    command -v "$client" > /dev/null || { echo "tests/gateways needs $client"; exit 2; }
done
PYTHONDONTWRITEBYTECODE=1 python3 -m unittest "${@:-discover}"
