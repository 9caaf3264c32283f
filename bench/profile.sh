#!/usr/bin/env bash
# Where the processors' time of one command goes: profile.sh [-o DIR] COMMAND [ARGUMENT...]
#
#   bench/profile.sh target/profiling/vellum sync src/ dst/
#   bench/profile.sh -o /tmp/p target/profiling/vellum -C tree verify --all
#
# Writes into DIR (target/profile): perf.data, report.txt (functions, most time first) and, where inferno is installed (cargo
# install inferno), flame.svg; samply, where it is installed, opens perf.data in a browser ('samply import DIR/perf.data').
# Needs perf (apt-get install linux-perf), and a binary with symbols: 'make profile-build' makes target/profiling/vellum. By the
# clock (cpu-clock), since virtual machines rarely have counters of the hardware; of a mount: COMMAND is 'mount --foreground …'.
set -euo pipefail

out=target/profile
if [ "${1:-}" = -o ]; then
    out=${2:?usage: profile.sh [-o DIR] COMMAND [ARGUMENT...]}
    shift 2
fi
[ $# -gt 0 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 3; }
command -v perf > /dev/null || { echo "profile.sh needs perf: apt-get install linux-perf" >&2; exit 2; }

mkdir -p "$out"
# What the command ends with is told, and the profile is made all the same.
code=0
perf record -q -e cpu-clock -F 999 -g --call-graph dwarf,16384 -o "$out/perf.data" -- "$@" || code=$?
perf report -i "$out/perf.data" --no-children --stdio -g none --percent-limit 0.5 > "$out/report.txt" 2> /dev/null
if command -v inferno-collapse-perf > /dev/null; then
    perf script -i "$out/perf.data" 2> /dev/null | inferno-collapse-perf | inferno-flamegraph > "$out/flame.svg"
    echo "$out/flame.svg"
fi
grep -v '^#' "$out/report.txt" | grep -v '^$' | head -20
echo "$out/report.txt"
exit "$code"
