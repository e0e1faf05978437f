#!/bin/sh
# Writes the locks of the images' Debian packages anew: deploy/*/debian-ARCHITECTURE.lock, with the SHA-256 and the file
# name of each package of the newest Debian 13, its updates and its security updates, in sha256sum's format. A lock has
# all packages that an image or a stage of its build has: the base's, those of `packages` and `packages-ARCHITECTURE`
# beside it, and what these depend on. deploy/debian.date says when Debian made the newest of the indices. Called by `make
# lock-debian`, in the root of the repository, and by deploy/build.sh with the name of another release: deploy/lock.sh [RELEASE].
set -eu
if [ "${1-}" != resolve ]; then
    exec mmdebstrap --quiet --variant=custom --architectures=amd64,arm64 --extract-hook='deploy/lock.sh resolve' \
        "${1:-trixie}" /dev/null
fi

# Called by mmdebstrap, which has fetched Debian's signed indices.
eval "$(apt-config --config-file "$MMDEBSTRAP_APT_CONFIG" shell lists Dir::State::lists/d)"
sed -n 's/^Date: //p' "$lists"/*_InRelease | date --file=- --utc +%Y-%m-%dT%H:%M:%SZ | sort | tail -n 1 >deploy/debian.date
for architecture in amd64 arm64; do
    for list in deploy/*/packages; do
        directory=${list%/*}
        lock=$directory/debian-$architecture.lock
        own=$directory/packages-$architecture
        # shellcheck disable=SC2046 # a word for each package
        apt-get --config-file "$MMDEBSTRAP_APT_CONFIG" --option "APT::Architecture=$architecture" \
            --option "APT::Architectures=$architecture" --option Acquire::ForceHash=SHA256 \
            --print-uris --yes --no-install-recommends install '?essential' '?priority(required)' apt \
            $(cat "$list" "$own" 2>/dev/null | cut -d'|' -f1) >"$lock.new"
        sed -n "s/^'[^']*' \([^ ]*\) [0-9]* SHA256:\([0-9a-f]*\)$/\2  \1/p" "$lock.new" | LC_ALL=C sort -k2 >"$lock"
        rm "$lock.new"
        echo "$lock: $(wc -l <"$lock") packages"
    done
done
