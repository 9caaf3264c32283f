#!/usr/bin/env bash
# Vellum's main job on a real tree of this machine, in a temporary directory that is gone at the end:
# snapshot, edit, status, diff, snapshot, restore, fork, verify; then a table of what each took.
#
#   VELLUM      the binary (default: target/release/vellum)
#   DEMO_TREE   the tree to copy (default: Go's sources, else the crates that cargo has unpacked, else Rust's own library)
#   DEMO_KEEP   set it to keep the directory and look around
set -euo pipefail
cd "$(dirname "$0")/.."

vellum=$(realpath "${VELLUM:-target/release/vellum}")
log=() # one "name<TAB>seconds" per step

bold='' plain=''
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '\n%s\n' "$bold$*$plain"; }
die() { echo "demo: $*" >&2; exit 1; }

# The tree to work on: large enough to be worth timing, and found on any machine that can build this.
find_tree() {
    local found
    if [ -n "${DEMO_TREE:-}" ]; then echo "$DEMO_TREE"; return; fi
    if found=$(go env GOROOT 2> /dev/null) && [ -d "$found/src" ]; then echo "$found/src"; return; fi
    if [ -d "${CARGO_HOME:-$HOME/.cargo}/registry/src" ]; then echo "${CARGO_HOME:-$HOME/.cargo}/registry/src"; return; fi
    found="$(rustc --print sysroot)/lib" && echo "$found"
}

# step NAME EXIT COMMAND...: shows the command, runs it, wants that exit code, notes the time.
step() {
    local name=$1 expected=$2 code=0 start end
    shift 2
    say "\$ vellum $*"
    start=$(date +%s%N)
    "$vellum" "$@" > "$work/out" 2> "$work/err" || code=$?
    end=$(date +%s%N)
    head -n 12 "$work/out"
    [ "$(wc -l < "$work/out")" -le 12 ] || echo "… ($(wc -l < "$work/out") lines)"
    if [ "$code" != "$expected" ]; then
        cat "$work/err" >&2
        die "'vellum $*' ended with $code, not $expected"
    fi
    log+=("$name	$(seconds $((end - start)))")
}

seconds() { printf '%d.%03d' $(($1 / 1000000000)) $(($1 % 1000000000 / 1000000)); }
mib() { du -sk "$1" | awk '{ printf "%.0f MiB", $1 / 1024 }'; }
files() { find "$1" -name .vellum -prune -o -type f -print | wc -l; }

# A fingerprint of names, types, modes, sizes, times and contents: what a restore must give back.
fingerprint() {
    (cd "$1" && find . -mindepth 1 -name .vellum -prune -o -printf '%P %y %m %s %T@ %l\n' | sed 's/^\(.* d [0-7]*\) [0-9]* /\1 /' | LC_ALL=C sort
        find . -name .vellum -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 cat) | sha256sum
}

# Edits as a day's work has them: modify, add, delete, rename, change a mode.
edit() {
    local list count=0 file
    list=$(find . -name .vellum -prune -o -type f -size +1k -size -64k -print | LC_ALL=C sort | awk 'NR % 97 == 5' | head -n 40)
    while read -r file; do
        count=$((count + 1))
        case $((count % 4)) in
        0) mv "$file" "$file.moved" ;;
        1) printf '\nedited in the demo\n' >> "$file" ;;
        2) rm -f "$file" ;;
        3) chmod 700 "$file" ;;
        esac
    done <<< "$list"
    mkdir -p demo-added && for i in 1 2 3 4 5; do echo "new file $i" > "demo-added/$i.txt"; done
    echo "edited, deleted, renamed or chmodded $count files, added 5"
}

[ -x "$vellum" ] || die "no binary at $vellum: run 'make demo', or set VELLUM"
tree=$(find_tree) || die "found no tree to work on: set DEMO_TREE"
[ -d "$tree" ] || die "$tree is no directory: set DEMO_TREE"

work=$(mktemp -d "${TMPDIR:-/tmp}/vellum-demo.XXXXXX")
cleanup() {
    if [ -n "${DEMO_KEEP:-}" ]; then echo "kept: $work"; else chmod -R u+rwX "$work" 2> /dev/null; rm -rf "$work"; fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say "copying $tree"
mkdir "$work/tree"
cp -a "$tree/." "$work/tree/"
chmod -R u+w "$work/tree"
cd "$work/tree"
size=$(mib .)
echo "$(files .) files, $size"

step "init" 0 init .
step "first snapshot" 0 snapshot -m "as it came" --tag start
store=$(mib .vellum)
before=$(fingerprint .)
step "snapshot, nothing changed" 0 snapshot -m "nothing changed"

say "editing"
edit
step "status" 1 status
step "diff --stat" 1 diff --stat
step "snapshot of the edits" 0 snapshot -m "a day's work" --tag edited
after=$(fingerprint .)

step "history" 0 history
step "restore the start" 0 restore start
[ "$(fingerprint .)" = "$before" ] || die "the restored tree is not the tree that was snapshotted"
echo "every name, mode, time and byte is back"
step "restore the edits" 0 restore edited
[ "$(fingerprint .)" = "$after" ] || die "the restored edits are not the edits that were snapshotted"

step "fork" 0 fork experiment --to "$work/fork" --from start
[ "$(fingerprint "$work/fork")" = "$before" ] || die "the fork is not the snapshot that it was made from"
step "verify everything" 0 verify --all

say "$(files .) files, $size, in the store after the first snapshot: $store, at the end: $(mib .vellum)"
printf '%s\n' "${log[@]}" | awk -F'\t' 'BEGIN { printf "\n%-28s %10s\n%-28s %10s\n", "step", "seconds", "----", "-------" } { printf "%-28s %10s\n", $1, $2 }'
