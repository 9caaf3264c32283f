#!/usr/bin/env bash
# Runs every fuzz target for some seconds (20 unless told); stops at the first finding.
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:-20}
for target in fuzz_targets/*.rs; do
    target=$(basename "$target" .rs)
    mkdir -p "corpus/$target"
    echo "== $target"
    cargo +nightly fuzz run --fuzz-dir . "$target" "corpus/$target" "seeds/$target" -- \
        -max_total_time="$seconds" -print_final_stats=1 -verbosity=0
done
