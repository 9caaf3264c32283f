#!/usr/bin/env bash
# Whether a binary does its main work: smoke.sh BINARY, as root (it mounts).
set -euo pipefail

vellum=$(realpath "$1")
work=$(mktemp -d)
trap 'umount -l "$work/mnt" 2> /dev/null || true; rm -rf "$work"' EXIT
export HOME=$work/home XDG_CACHE_HOME=$work/cache
mkdir "$HOME" "$work/data" "$work/mnt"
cd "$work/data"

fail() { echo "smoke test: $1" >&2; exit 1; }

"$vellum" --version
echo a secret that is long enough > "$work/secret"
"$vellum" init --quiet --passphrase-file "$work/secret" --store "$work/store" > /dev/null
echo one > file
head -c 3000000 /dev/urandom > big
cp big "$work/big"
"$vellum" snapshot --quiet --tag first
echo two > file
rm big
"$vellum" snapshot --quiet --tag second
"$vellum" restore --quiet first
[ "$(cat file)" = one ] && cmp big "$work/big" || fail "restore brings back something else"

"$vellum" mount --quiet . "$work/mnt"
cmp "$work/mnt/big" big || fail "the mount shows something else"
echo three > "$work/mnt/file"
"$vellum" -C "$work/mnt" snapshot --quiet --tag third
"$vellum" umount --quiet "$work/mnt"
[ "$("$vellum" cat third file)" = three ] || fail "the mount's snapshot has something else"

"$vellum" sync --quiet --delete . "$work/copy"
diff -r --exclude .vellum . "$work/copy" || fail "the copy is another one"
"$vellum" verify --all --quiet || fail "the volume is damaged"
"$vellum" gc run --quiet
echo "smoke test passed"
