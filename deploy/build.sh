#!/bin/sh
# Both programs' images where no registry can be reached: their base is made of Debian's packages. Called by `make
# image`, in the root of the repository. Layers are kept in the cache; remove that for newer packages.
set -eu
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
base=localhost/debian:trixie-slim
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
    # Without what Debian's own slim image leaves out, and without what is this machine's.
    mmdebstrap --quiet --variant=minbase \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' \
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
