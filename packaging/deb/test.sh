#!/usr/bin/env bash
# Installs a package in a clean Debian, mounts a volume there, removes the package, and looks whether anything is left.
# test.sh PACKAGE DIRECTORY, as root; needs debootstrap. The Debian comes from the mirror that apt uses here, and stays in
# DIRECTORY for the next run.
set -euo pipefail

package=$(realpath "$1")
mkdir -p "$2"
work=$(realpath "$2")
clean=$work/clean
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(apt-get indextargets --format '$(SITE)' "Created-By: Packages" | head -n 1)

if [ ! -e "$work/ready" ]; then
    rm -rf --one-file-system "$clean"
    debootstrap --variant=minbase "$suite" "$clean" "$mirror"
    touch "$work/ready"
fi

# Everything that is mounted ends with this namespace, and what is written with the layer over the clean system.
unshare --mount --pid --fork --kill-child bash -euo pipefail -c '
    clean=$1 package=$2
    here=$(mktemp -d)
    mount -t tmpfs tmpfs "$here"
    mkdir "$here/upper" "$here/work" "$here/root"
    mount -t overlay overlay -o lowerdir="$clean",upperdir="$here/upper",workdir="$here/work" "$here/root"
    root=$here/root
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    cp "$package" "$root/vellum.deb"
    list() { chroot "$root" find / -xdev \( -path /proc -o -path /dev -o -path /root/volume -o -path /var/lib/dpkg -o \
        -path /var/log -o -path /var/cache -o -path /vellum.deb \) -prune -o -print | sort; }
    list > "$here/before"

    chroot "$root" dpkg --install /vellum.deb
    chroot "$root" sh -euxc "
        vellum --version
        test -s /usr/share/man/man1/vellum-mount.1.gz
        test -s /usr/lib/systemd/system/vellum-mount@.service
        mkdir -p /root/volume/data /root/volume/mnt
        cd /root/volume/data
        vellum init --quiet --plain
        echo first > file
        vellum snapshot --quiet --tag first
        mount -t vellum /root/volume/data /root/volume/mnt
        test \"\$(cat /root/volume/mnt/file)\" = first
        echo second > /root/volume/mnt/file
        umount /root/volume/mnt
        until mount -t vellum /root/volume/data /root/volume/mnt; do sleep 0.1; done
        test \"\$(cat /root/volume/mnt/file)\" = second
        vellum umount /root/volume/mnt
        vellum verify --all --quiet
    "
    chroot "$root" dpkg --purge vellum
    rm -rf "$root/root/.cache" "$root/root/.local"
    list > "$here/after"
    diff "$here/before" "$here/after"
    test -s "$root/root/volume/data/file"
    echo "the package installs, mounts, and leaves nothing but the volume"
' test "$clean" "$package"
