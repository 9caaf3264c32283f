#!/usr/bin/env bash
# Makes a Debian package of a binary that is there: build.sh BINARY DIRECTORY puts vellum_VERSION_ARCHITECTURE.deb into DIRECTORY.
#
# The package has what 'make install' installs, enables no unit, and leaves volumes alone when it is removed.
set -euo pipefail
umask 022

binary=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "$0")/../.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
architecture=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root

make --silent install PREFIX=/usr SBINDIR=/usr/sbin UNITDIR=/usr/lib/systemd/system DESTDIR="$root" BINARY="$binary"

# Where Debian's zsh looks.
mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"

doc=$root/usr/share/doc/vellum
install -d "$doc/docs"
install -m 644 README.md "$doc"
install -m 644 docs/*.md "$doc/docs"
install -m 644 packaging/deb/copyright "$doc/copyright"
gzip -9nc CHANGELOG.md > "$doc/changelog.gz"
find "$root/usr/share/man" -type f -exec gzip -9n {} +

# What the binary is linked with, if it is not static.
depends=
if ! file -L "$binary" | grep -q 'static'; then
    mkdir "$work/debian"
    : > "$work/debian/control"
    depends=$(cd "$work" && dpkg-shlibdeps -O "$root/usr/bin/vellum" "$root/usr/bin/vellum-serve" 2> "$work/warnings" | sed -n 's/^shlibs:Depends=//p') ||
        { cat "$work/warnings" >&2; exit 1; }
fi

install -d "$root/DEBIAN"
{
    echo "Package: vellum"
    echo "Version: $version"
    echo "Architecture: $architecture"
    echo "Maintainer: The Vellum developers <vellum@localhost>"
    echo "Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f 1)"
    [ -z "$depends" ] || echo "Depends: $depends"
    echo "Recommends: fuse3"
    echo "Suggests: openssh-client"
    echo "Section: utils"
    echo "Priority: optional"
    echo "Description: filesystem that remembers"
    echo " Vellum takes snapshots of directories, compares them, rolls them back and proves them"
    echo " intact. It mounts worktrees and snapshots, keeps them in directories and object stores,"
    echo " and synchronises directories."
} > "$root/DEBIAN/control"
install -m 755 packaging/deb/postinst packaging/deb/postrm "$root/DEBIAN"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) > "$root/DEBIAN/md5sums"

dpkg-deb --root-owner-group -Zxz --build "$root" "$out/vellum_${version}_$architecture.deb"
