#!/usr/bin/env bash
# Runs the shell examples of the documents: run.sh [DOCUMENT...], as root, with VELLUM (the binary, with vellum-serve beside it) and
# TOOLS (where SeaweedFS is). Needs OpenSSH, PostgreSQL's client and what `make tools` installs.
set -euo pipefail
cd "$(dirname "$0")"

: "${VELLUM:?the binary}" "${TOOLS:?a directory for tools}"
PYTHONDONTWRITEBYTECODE=1 exec python3 run.py "$@"
