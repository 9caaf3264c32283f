#!/usr/bin/env bash
# Every figure of docs/benchmarks.md, one after another: all.sh OUTDIR. Takes hours and about 60 GB of disk.
#
#   VELLUM RESTIC BORG RUSTIC   the binaries (default: from PATH; a rival that is missing is left out)
#   VELLUM_BENCH_CACHE          where trees and repositories go (default: ~/.cache/vellum-bench)
#   JUICEFS                     JuiceFS, if it shall take part
#   ROUNDS                      rounds for the trees (default: 5; the large ones take 3)
set -euo pipefail
cd "$(dirname "$0")"

out=$(realpath "${1:?usage: all.sh OUTDIR}")
rounds=${ROUNDS:-5}
large=$((rounds < 3 ? rounds : 3))

python3 startup.py --json "$out/startup.json"
python3 compare/backup.py --rounds "$rounds" --trees goroot,small100k,wheels --json "$out/backup.json"
python3 compare/backup.py --rounds "$large" --trees registry,big4g --json "$out/backup.json"
python3 compare/backup.py --rounds "$large" --trees git,photos,node --ops first --json "$out/backup.json"
python3 compare/backup.py --rounds 1 --trees small1m --ops first --json "$out/backup.json"
python3 snapshots.py --json "$out/snapshots.json"
# What follows needs root.
python3 compare/sync.py --rounds "$rounds" --json "$out/sync.json"
python3 compare/sync_remote.py --rounds "$large" --json "$out/sync_remote.json"
python3 mounted.py --json "$out/mounted.json"
python3 hydrate.py --json "$out/hydrate.json"
python3 compare/filesystem.py --rounds "$large" --json "$out/filesystem.json"
# Vellum's own benches.
ground=${VELLUM_BENCH_CACHE:-$HOME/.cache/vellum-bench}/engines
mkdir -p "$ground"
python3 own.py engines --json "$out/engines.json" -- bench engines "$ground" --sizes 1G --counts 100
python3 own.py engines --json "$out/engines.json" -- bench engines "$ground" --sizes 10G --counts 1000
python3 own.py engines --json "$out/engines.json" -- bench engines "$ground" --sizes 10M --counts 10000
python3 own.py pipeline --json "$out/pipeline.json" -- bench pipeline --sizes 64K,1M,10M "$(go env GOROOT)"
# Every structure by itself, the map at the size for which there are targets.
VELLUM_BENCH_KEYS=${VELLUM_BENCH_KEYS:-10000000} python3 micro.py --json "$out/micro.json"
