#!/usr/bin/env bash
# Runs fuzz targets for some seconds each: all.sh [SECONDS [TARGET...]]; 20 seconds and every target unless told. Goes on
# after a finding, and names all that were found at the end (exit code 1).
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:-20}
shift $(($# > 0 ? 1 : 0))
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    for target in fuzz_targets/*.rs; do targets+=("$(basename "$target" .rs)"); done
fi

# What instruments a program is not for stable compilers, unless they are told so.
cargo=(cargo)
if rustup toolchain list 2> /dev/null | grep -q '^nightly'; then
    cargo=(cargo +nightly)
else
    export RUSTC_BOOTSTRAP=1
fi
if ! "${cargo[@]}" fuzz --version > /dev/null 2>&1; then
    echo "cargo-fuzz is missing: cargo install cargo-fuzz --locked" >&2
    exit 2
fi

found=()
for target in "${targets[@]}"; do
    mkdir -p "corpus/$target"
    echo "== $target"
    "${cargo[@]}" fuzz run --fuzz-dir . "$target" "corpus/$target" "seeds/$target" -- \
        -max_total_time="$seconds" -print_final_stats=1 -verbosity=0 || found+=("$target")
done
if [ ${#found[@]} -gt 0 ]; then
    echo "found something: ${found[*]} (inputs are in fuzz/artifacts)" >&2
    exit 1
fi
