#!/bin/sh
# What the stages of both images do with Debian: installs the packages of /tmp/debian-ARCHITECTURE.lock, with the versions
# and the hashes that are there. An image that then has others is an error, and so is a BASE that may be another
# tomorrow. Nothing of apt is left but its configuration.
set -eu
lock=/tmp/debian-$(dpkg --print-architecture).lock
renew="renew the locks with make lock-debian"
fail() {
    echo "$1" >&2
    exit 1
}

case $BASE in
localhost/* | *@sha256:*) ;;
*) fail "BASE: $BASE has no digest; expected NAME@sha256:..., which make lock-base writes, or localhost/..." ;;
esac

versions=$(sed 's/^[^ ]*  \([^_]*\)_\([^_]*\)_.*/\1=\2/; s/%3a/:/' "$lock")
install() { apt-get install --quiet --yes --no-install-recommends "$@" $versions; }
apt-get update --quiet
install --download-only || fail "$lock: Debian has not all of these versions any more, or the base has newer ones; $renew"
cd /var/cache/apt/archives
sha256sum -- *.deb >/tmp/files
if grep --invert-match --line-regexp --fixed-strings --file="$lock" /tmp/files >&2; then
    fail "$lock: these files of Debian are not the lock's; $renew"
fi
install --no-download
dpkg-query --show --showformat='${Package}_${Version}_${Architecture}.deb\n' | sed 's/:/%3a/' | LC_ALL=C sort >/tmp/installed
if ! cut -d' ' -f3 "$lock" | diff - /tmp/installed >&2; then
    fail "$lock: the image has other packages (>) or lacks some (<); $renew"
fi
rm -rf /tmp/* /var/cache/* /var/lib/apt/lists/* /var/log/*
