#!/usr/bin/env bash
# A mount that works for hours must not grow: rounds of making, reading, moving and removing files, of snapshots and their
# publishing. Tells after each round how many descriptors its process has, and how much memory; in the second half neither
# may be above the first half's by more than a tenth and a few, nor above the limits below.
#
#   VELLUM=path/to/vellum tests/soak/mount.sh
#
# SOAK_MINUTES: how long (120). SOAK_OUT: where the figures of each round go.
set -euo pipefail
minutes=${SOAK_MINUTES:-120}
[ -z "${SOAK_OUT:-}" ] || exec > "$SOAK_OUT"
# Descriptors: open packs and folders, and what a mount begins with. Memory, MiB: the cache of content, and as much again.
descriptors_max=400
memory_max=320
work=$(mktemp -d)
mnt=$work/mnt

cleanup() {
    cd /
    "$VELLUM" umount -q "$mnt" 2>/dev/null || umount -l "$mnt" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

mkdir "$work/volume" "$mnt"
cd "$work/volume"
"$VELLUM" init -q --plain > /dev/null
# Little for the cache, so that what grows is seen at once.
"$VELLUM" mount -q --cache-size 64M "$mnt"
# The caches of names and attributes have limits of their own: they are filled first, so that what grows later is no cache.
python3 - "$mnt" <<'PYTHON'
import os, sys
filled = os.path.join(sys.argv[1], "filled")
for part in range(100):
    folder = os.path.join(filled, str(part))
    os.makedirs(folder)
    for number in range(1500):
        path = os.path.join(folder, f"a name of some length {number}")
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        os.listxattr(path)
        try:
            os.getxattr(path, "user.none")
        except OSError:
            pass
PYTHON
rm -rf "$mnt/filled"
pid=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "$mnt/.vellum/mount.json")

# Makes files of all sizes, reads them, moves some, removes the ones of three rounds ago, and takes a snapshot.
round() {
    local number dir=$mnt/round-$1 gone=$mnt/round-$(($1 - 3))
    mkdir -p "$dir/deep/er"
    for number in $(seq 200); do
        head -c $((number * 97)) /dev/urandom > "$dir/deep/$number"
    done
    head -c 8M /dev/urandom > "$dir/large"
    dd if="$dir/large" of="$dir/copy" bs=1M oflag=direct status=none
    mv "$dir/deep" "$dir/deeper"
    ln "$dir/deeper/1" "$dir/linked"
    setfattr -n user.round -v "$1" "$dir/large"
    cat "$dir"/deeper/[0-9]* "$dir/large" > /dev/null
    find "$mnt" -type f -printf '%s\n' > /dev/null
    (cd "$mnt" && "$VELLUM" snapshot -q -m "round $1" > /dev/null && "$VELLUM" flush -q)
    find "$mnt/.vellum/snapshots" -mindepth 2 -maxdepth 3 > /dev/null
    rm -rf "$gone"
}

# Forgets all but the newest ten snapshots, and frees what only they held, so that the disk does not fill.
forget_old() {
    local old
    old=$("$VELLUM" -C "$mnt" history -n 0 --json |
        python3 -c 'import json, sys; print(*[s["id"] for s in json.load(sys.stdin)["snapshots"][10:]])')
    [ -z "$old" ] || "$VELLUM" -C "$mnt" forget -q $old > /dev/null
    "$VELLUM" -C "$mnt" gc run -q > /dev/null
}

descriptors() { find "/proc/$pid/fd" -mindepth 1 | wc -l; }
memory() { awk '/^VmRSS/ { print int($2 / 1024) }' "/proc/$pid/status"; }

# The largest of some numbers.
largest() { printf '%s\n' "$@" | sort -n | tail -1; }

begin=$(date +%s)
end=$((begin + minutes * 60))
fds=() mib=()
for ((number = 1; $(date +%s) < end || number <= 8; number++)); do
    round "$number"
    ((number % 20 != 0)) || forget_old
    fds+=("$(descriptors)") mib+=("$(memory)")
    echo "round $number, $(($(date +%s) - begin)) s: ${fds[-1]} descriptors, ${mib[-1]} MiB"
done

# Whether the second half of a row of numbers is no higher than the first, but for a tenth and so many.
is_flat() {
    local slack=$1 most=$2
    shift 2
    local half=$(($# / 2))
    local first last
    first=$(largest "${@:1:half}")
    last=$(largest "${@:half+1}")
    echo "at most $first in the first half, $last in the second"
    ((last <= first + first / 10 + slack && last <= most))
}

failed=0
echo "descriptors:"
is_flat 16 "$descriptors_max" "${fds[@]}" || { echo "descriptors grow" >&2; failed=1; }
echo "MiB:"
is_flat 16 "$memory_max" "${mib[@]}" || { echo "memory grows" >&2; failed=1; }
exit "$failed"
