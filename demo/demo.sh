#!/usr/bin/env bash
# Vellum's main job on a real tree of this machine, in a temporary directory that is gone at the end:
# snapshot, edit, status, diff, snapshot, restore, fork, mount, verify; then a table of what each took, beside what the
# same took restic, rsync or cp, whichever is found first.
#
#   VELLUM      the binary (default: target/release/vellum)
#   DEMO_TREE   the tree to copy (default: Go's sources, else the crates that cargo has unpacked, else Rust's own library)
#   DEMO_KEEP   set it to keep the directory and look around
set -euo pipefail
cd "$(dirname "$0")/.."

vellum=$(realpath "${VELLUM:-target/release/vellum}")
log=() # one "name<TAB>seconds" per step
declare -A rivals=() # seconds by name of the step

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

# rival NAME COMMAND...: what the rival does for that step, timed.
rival() {
    local name=$1 start end
    shift
    start=$(date +%s%N)
    "$@" > "$work/out" 2>&1 || { cat "$work/out" >&2; die "'$*' failed"; }
    end=$(date +%s%N)
    rivals[$name]=$(seconds $((end - start)))
}

# What each rival does to keep the tree as it is (rival_keep N) and to bring version N back (rival_restore N).
rival=none
for program in restic rsync cp; do
    if command -v "$program" > /dev/null; then rival=$program; break; fi
done
rival_init() { [ "$rival" != restic ] || restic -q init; }
rival_keep() {
    case $rival in
    restic) restic -q backup --tag "$1" --exclude .vellum . ;;
    rsync) rsync -a --exclude=/.vellum ${2:+--link-dest="$work/rival/$2"} ./ "$work/rival/$1/" ;;
    cp) mkdir "$work/rival/$1" && find . -mindepth 1 -maxdepth 1 ! -name .vellum -exec cp -a -t "$work/rival/$1" {} + ;;
    esac
}
rival_restore() {
    case $rival in
    restic) restic -q restore latest --tag "$1" --delete --target "$work/rival-tree" || restic -q restore latest --tag "$1" --target "$work/rival-tree" ;;
    rsync) rsync -a --delete "$work/rival/$1/" "$work/rival-tree/" ;;
    cp) rm -rf "$work/rival-tree" && cp -a "$work/rival/$1" "$work/rival-tree" ;;
    esac
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
    if mountpoint -q "$work/mnt"; then "$vellum" umount -q "$work/mnt" || umount -l "$work/mnt"; fi
    if [ -n "${DEMO_KEEP:-}" ]; then echo "kept: $work"; else chmod -R u+rwX "$work" 2> /dev/null; rm -rf "$work"; fi
}
trap cleanup EXIT
export RESTIC_REPOSITORY="$work/rival" RESTIC_PASSWORD=demo
mkdir "$work/rival" "$work/rival-tree"
trap 'exit 130' INT TERM

say "copying $tree"
mkdir "$work/tree"
cp -a "$tree/." "$work/tree/"
chmod -R u+w "$work/tree"
cd "$work/tree"
size=$(mib .)
echo "$(files .) files, $size"

step "init" 0 init .
rival_init
rival "first snapshot" rival_keep 1
step "first snapshot" 0 snapshot -m "as it came" --tag start
store=$(mib .vellum)
before=$(fingerprint .)
rival "snapshot, nothing changed" rival_keep 2 1
step "snapshot, nothing changed" 0 snapshot -m "nothing changed"

say "editing"
edit
step "status" 1 status
step "diff --stat" 1 diff --stat
rival "snapshot of the edits" rival_keep 3 2
step "snapshot of the edits" 0 snapshot -m "a day's work" --tag edited
after=$(fingerprint .)

step "history" 0 history
# The rival restores a tree that holds the edits, as Vellum does.
find . -mindepth 1 -maxdepth 1 ! -name .vellum -exec cp -a -t "$work/rival-tree" {} +
rival "restore the start" rival_restore 1
step "restore the start" 0 restore start
[ "$(fingerprint .)" = "$before" ] || die "the restored tree is not the tree that was snapshotted"
echo "every name, mode, time and byte is back"
step "restore the edits" 0 restore edited
[ "$(fingerprint .)" = "$after" ] || die "the restored edits are not the edits that were snapshotted"

rival "fork" cp -a --reflink=auto "$work/rival-tree" "$work/rival-fork"
step "fork" 0 fork experiment --to "$work/fork" --from start
[ "$(fingerprint "$work/fork")" = "$before" ] || die "the fork is not the snapshot that it was made from"

if [ -c /dev/fuse ] && { [ "$(id -u)" = 0 ] || command -v fusermount3 > /dev/null; }; then
    mkdir "$work/mnt"
    step "mount" 0 mount --temporary "$work/mnt"
    find "$work/mnt" -type f | wc -l | sed 's/$/ files are there at once/'
    step "umount" 0 umount "$work/mnt"
else
    say "no mount: that needs /dev/fuse, and root or fusermount3"
fi
step "verify everything" 0 verify --all

say "$(files .) files, $size, in the store after the first snapshot: $store, at the end: $(mib .vellum)"
for line in "${log[@]}"; do printf '%s\t%s\n' "$line" "${rivals[${line%%	*}]:-}"; done | awk -F'\t' -v rival="$rival" '
    BEGIN { printf "\n%-28s %10s %10s\n%-28s %10s %10s\n", "seconds", "vellum", rival, "-------", "------", "------" }
    { printf "%-28s %10s %10s\n", $1, $2, $3 }'
cat << END

The binary: $vellum
Try next, in a directory of yours:
  $vellum init && $vellum snapshot
  $vellum status
  mkdir ~/fork && $vellum fork experiment --mount ~/fork    # at once, however large; vellum umount ~/fork ends it
  $vellum help
END
