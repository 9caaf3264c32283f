#!/usr/bin/env bash
# pjdfstest, fsx, a storm of renames and listings and an image of ext2, on a mount of an empty volume, as root. Installs
# the first two if they are not there. Runs twice if the kernel can hand over requests through io_uring: through the
# device, and through rings; and once more on a client's mount of a shared worktree. There, two mounts use one file under
# locks, too. No deviation is accepted: all of pjdfstest passes on clients, but what it skips everywhere.
#
#   VELLUM=path/to/vellum tests/posix/run.sh
#
# TOOLS: where they are installed. FSX_SEEDS and FSX_OPS: how often fsx runs, and for how many operations. STORM: seconds of
# the storm. MOUNT: run
# on this directory instead, without a volume (to compare with another filesystem).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tools=${TOOLS:-$here/../../target/tools}
seeds=${FSX_SEEDS:-1 2 3 4}
ops=${FSX_OPS:-5000}
storm=${STORM:-30}
work=$(mktemp -d)

install() {
    [ -x "$tools/bin/$1" ] || cargo install "$1" --version "$2" --locked --root "$tools" --quiet
}

offer=/sys/module/fuse/parameters/enable_uring
offered=$(cat "$offer" 2>/dev/null || true)

unmount() {
    "$VELLUM" umount -q "$work/posix" 2>/dev/null || umount -l "$work/posix" 2>/dev/null || true
    # The process that served it goes on until everything is in the store.
    while pgrep -f -- "--detach .*$work/posix" > /dev/null; do sleep 0.1; done
}

cleanup() {
    cd /
    umount "$work/image" 2>/dev/null || true
    [ -n "${MOUNT:-}" ] || unmount
    umount -l "$work/second" 2>/dev/null || true
    umount -l "$work/server" 2>/dev/null || true
    [ -z "$offered" ] || echo "$offered" > "$offer"
    rm -rf "$work"
}
trap cleanup EXIT

suite() {
    local mnt=$1
    chmod 755 "$work" "$mnt"
    mkdir "$mnt/pjdfstest"
    (cd "$mnt/pjdfstest" && "$tools/bin/pjdfstest" -c "$here/pjdfstest.toml" -p "$mnt/pjdfstest") |
        tee "$work/pjdfstest.log" | grep -v -E '[[:space:]]ok$|success' || true
    grep -q '^Summary: 0 failed,' "$work/pjdfstest.log" || { echo "pjdfstest failed" >&2; exit 1; }

    for seed in $seeds; do
        "$tools/bin/fsx" -q -f "$here/fsx.toml" -S "$seed" -N "$ops" -P "$work" "$mnt/fsx.$seed" || {
            echo "fsx failed with seed $seed" >&2
            exit 1
        }
        rm -f "$mnt/fsx.$seed"
    done
    echo "fsx: seeds $seeds, $ops operations each: no failure"

    # A request that is never answered is what this looks for: it must end.
    mkdir "$mnt/storm"
    timeout -k 5 $((storm + 60)) "$work/storm" "$mnt/storm" "$storm" || { echo "the storm failed" >&2; exit 1; }
    echo "storm: $storm seconds: no failure"

    # Another filesystem in a file of this one, filled with names of one file, as fast as it can.
    truncate -s 300M "$mnt/image"
    mkfs.ext2 -q -F "$mnt/image"
    mkdir "$work/image"
    mount -o loop "$mnt/image" "$work/image"
    touch "$work/image/file"
    timeout -k 5 60 python3 -c 'import os, sys
for number in range(31000): os.link(sys.argv[1] + "/file", f"{sys.argv[1]}/{number}")' "$work/image" || { echo "an image on the mount failed" >&2; exit 1; }
    timeout 60 sync -f "$work/image"
    umount "$work/image"
    rmdir "$work/image"
    fsck.ext2 -fn "$mnt/image" > /dev/null
    rm -f "$mnt/image"
    echo "image: 31,000 names in a filesystem in a file: no failure"
}

# A new volume, mounted, with the suite on it.
on_a_volume() {
    mkdir "$work/volume" "$work/posix"
    (cd "$work/volume" && "$VELLUM" init -q --plain && "$VELLUM" mount -q --allow-other "$work/posix")
    # Devices and set-user-id programs are for the tests' own files only.
    mount -o remount,bind,dev,suid "$work/posix"
    suite "$work/posix"
    unmount
    rm -rf "$work/volume" "$work/posix"
}

# A shared worktree that one mount serves, with the suite on a client.
on_a_client() {
    local address store=$work/volume/.vellum/store
    mkdir "$work/volume" "$work/client" "$work/server" "$work/posix" "$work/second"
    (cd "$work/volume" && "$VELLUM" init -q --plain)
    address=$(cd "$work/volume" &&
        "$VELLUM" --json mount --allow-other --shared work --listen 127.0.0.1:0 "$work/server" |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["serves"])')
    (cd "$work/client" && "$VELLUM" init -q --plain --name client --store "$store")
    for place in posix second; do
        (cd "$work/client" && "$VELLUM" mount -q --allow-other --shared work --server "$address" "$work/$place")
    done
    mount -o remount,bind,dev,suid "$work/posix"
    "$here/two_mounts.py" "$work/posix/locked" "$work/second/locked" "$work/expected" ${ops}
    suite "$work/posix"
    "$VELLUM" umount -q "$work/second"
    unmount
    # It goes on until everything is in the store.
    "$VELLUM" umount -q "$work/server"
    rm -rf "$work/volume" "$work/client" "$work/server" "$work/posix" "$work/second"
}

install pjdfstest 0.2.2
install fsx 0.3.2
cc -O1 -o "$work/storm" "$here/storm.c"

if [ -n "${MOUNT:-}" ]; then
    suite "$MOUNT"
    exit
fi
if [ -n "$offered" ]; then
    echo "through rings:"
    echo Y > "$offer"
    on_a_volume
    echo N > "$offer"
    echo "through the device:"
fi
on_a_volume
echo "on a client of a shared worktree:"
on_a_client
