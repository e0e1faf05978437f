#!/bin/sh
# Both programs' images where no registry can be reached: their base is made of Debian's packages. Called by `make
# image`, in the root of the repository. Layers are kept in the cache.
set -eu
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
architecture=$(dpkg --print-architecture)
# The plugin's image has the fewest packages, and all of the base's.
LOCK=$PWD/deploy/plugin/debian-$architecture.lock
export LOCK
base=localhost/debian:$(sha256sum "$LOCK" | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpu-launcher-image
export BUILDAH_ISOLATION=chroot

if [ "$(id -u)" != 0 ]; then
    echo "make image needs root, to make Debian's file system; expected uid 0, found $(id -u)"
    exit 1
fi

# Debian 12's buildah has the kernel kill its children with the thread that has started them, and on a busy machine that
# thread may end first (buildah's pull request 4790). What it has made by then is kept, so it is called again.
stored() {
    for try in 1 2 3 4 5; do
        code=0
        buildah --root "$cache" --runroot "$cache/run" "$@" 2>"$cache/said" || code=$?
        grep -q 'signal: killed' "$cache/said" || break
    done
    cat "$cache/said" >&2
    return "$code"
}

mkdir -p "$cache" dist
if ! stored inspect --type image "$base" >/dev/null 2>&1; then
    # Without what Debian's own slim image leaves out, and without what is this machine's. Each package is one of the lock.
    mmdebstrap --quiet --variant=minbase \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' \
        --skip=essential/unlink --customize-hook='
            cd "$1/var/cache/apt/archives" && sha256sum -- *.deb >"$1/tmp/files" || exit
            if grep --invert-match --line-regexp --fixed-strings --file="$LOCK" "$1/tmp/files" >&2; then
                echo "$LOCK: Debian has these packages now; renew the locks with make lock-debian" >&2
                exit 1
            fi
            rm "$1/tmp/files"' \
        --customize-hook='rm -f "$1/etc/hostname" "$1/etc/resolv.conf"' --skip=output/dev \
        trixie "$cache/base.tar"
    container=$(stored from scratch)
    stored add --quiet "$container" "$cache/base.tar" / >/dev/null
    stored commit --quiet --rm "$container" "$base" >/dev/null
    rm "$cache/base.tar"
fi
for program in plugin launcher; do
    image=gpu-$program:$version
    archive=dist/gpu-$program-$version.tar
    # Where PyPI is reached through a proxy, its certificate is among the machine's.
    stored build --quiet --layers --pull=never --build-arg "BASE=$base" \
        --secret "id=certificates,src=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}" \
        --build-arg PIP_CERT=/run/secrets/certificates \
        --file "deploy/$program/Containerfile" --tag "$image" . >/dev/null
    rm -f "$archive"
    stored push --quiet "$image" "oci-archive:$archive:localhost/$image"
    echo "$archive"
done
