#!/usr/bin/env bash
# A filesystem in memory to measure on, so that the disk's own moods stay out of the ratios: ramdisk.sh make|remove DIR [SIZE] [KIND]
# Needs root. An ext4 (or xfs, or btrfs) on a loop device behaves as one on a disk does, which tmpfs would not.
set -euo pipefail

command=${1:?usage: ramdisk.sh make|remove DIR [SIZE] [KIND]}
dir=${2:?usage: ramdisk.sh make|remove DIR [SIZE] [KIND]}
image=/dev/shm/vellum-bench-$(basename "$dir").img

case $command in
make)
    # Several directories may end in one name: the filesystem of another must not be cut off.
    if losetup -j "$image" 2>/dev/null | grep -q .; then
        echo "ramdisk.sh: $image is in use; give DIR another last name" >&2
        exit 3
    fi
    mkdir -p "$dir"
    truncate -s "${3:-8G}" "$image"
    case ${4:-ext4} in
    ext4) mkfs.ext4 -q -F -m 0 -E lazy_itable_init=0,lazy_journal_init=0 -i 4096 "$image" ;;
    xfs) mkfs.xfs -q -f "$image" ;;
    btrfs) mkfs.btrfs -q -f "$image" ;;
    *)
        echo "ramdisk.sh: ext4, xfs or btrfs, not $4" >&2
        exit 3
        ;;
    esac
    mount -o loop,noatime "$image" "$dir"
    ;;
remove)
    umount "$dir"
    rm -f "$image"
    rmdir "$dir"
    ;;
*)
    echo "ramdisk.sh: make or remove, not $command" >&2
    exit 3
    ;;
esac
