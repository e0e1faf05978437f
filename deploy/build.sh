#!/bin/sh
# Both programs' images where no registry can be reached: their base is made of Debian's packages. Called by `make
# image` and `make dist`, in the root of the repository: deploy/build.sh [ARCHITECTURE...], Debian's names; without one,
# this machine's. Another architecture than the machine's is emulated. An archive with several has an index of them.
# Layers are kept in the cache. The same commit gives archives of the same bytes: every time in them is SOURCE_DATE_EPOCH,
# or that of the Debian indices that the locks are from.
#
# With RELEASE=forky both are of Debian's next release as it is today: it changes each day, so the repository has no lock of
# it. They are built in dist/forky, a copy of the working tree whose locks are new, and have names that end in -forky.
set -eu
release=${RELEASE:-trixie}
if [ "${RELEASE-}" ]; then
    case $release in
    *[!a-z]*)
        echo "RELEASE: $release is no release of Debian's; expected a name such as forky" >&2
        exit 1
        ;;
    esac
    copy=dist/$release
    rm -rf "$copy"
    mkdir -p "$copy"
    git ls-files -z --cached --others --exclude-standard | xargs -0 cp -a --parents --target-directory "$copy"
    cd "$copy"
    deploy/lock.sh "$release" >&2
    echo "$release is not pinned: its packages are those of $(cat deploy/debian.date)" >&2
fi
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(date --date="$(cat deploy/debian.date)" +%s)}
export SOURCE_DATE_EPOCH
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpu-launcher-image
export BUILDAH_ISOLATION=chroot
[ $# != 0 ] || set -- "$(dpkg --print-architecture)"

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

# The image of Debian's packages that the others of an architecture are built on, by its name. The plugin's image has the
# fewest packages, and all of the base's.
base() {
    LOCK=$PWD/deploy/plugin/debian-$1.lock
    export LOCK
    name=localhost/debian-$1:$(echo "$SOURCE_DATE_EPOCH" | cat "$LOCK" - | sha256sum | cut -c1-16)
    echo "$name"
    ! stored inspect --type image "$name" >/dev/null 2>&1 || return 0
    # Without what Debian's own slim image leaves out, and without what is this machine's. Each package is one of the lock.
    mmdebstrap --quiet --variant=minbase --architectures="$1" \
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
        "$release" "$cache/base.tar"
    container=$(stored from scratch)
    stored config --arch "$1" "$container"
    stored add --quiet "$container" "$cache/base.tar" / >/dev/null
    stored commit --quiet --rm --identity-label=false --timestamp "$SOURCE_DATE_EPOCH" "$container" "$name" >/dev/null
    rm "$cache/base.tar"
}

# Have the kernel give programs of an architecture to QEMU. Debian's packages do so where systemd runs, so not in containers.
emulate() {
    case $1 in
    amd64) binary=qemu-x86_64 ;;
    arm64) binary=qemu-aarch64 ;;
    *)
        echo "$1: no image is built for it; expected amd64 or arm64" >&2
        exit 1
        ;;
    esac
    if ! command -v arch-test >/dev/null || ! [ -e "/usr/lib/binfmt.d/$binary.conf" ]; then
        echo "$1: emulating it needs packages; apt-get install arch-test qemu-user-static" >&2
        exit 1
    fi
    formats=/proc/sys/fs/binfmt_misc
    [ -e "$formats/register" ] || mount -t binfmt_misc binfmt_misc "$formats"
    [ -e "$formats/$binary" ] || cat "/usr/lib/binfmt.d/$binary.conf" >"$formats/register"
}

mkdir -p "$cache" dist
for architecture; do
    [ "$architecture" = "$(dpkg --print-architecture)" ] || emulate "$architecture"
done
for program in plugin launcher; do
    image=localhost/gpu-$program:$version${RELEASE:+-$RELEASE}
    archive=dist/gpu-$program-$version.tar
    ! stored manifest inspect "$image" >/dev/null 2>&1 || stored manifest rm "$image" >/dev/null
    ! stored inspect --type image "$image" >/dev/null 2>&1 || stored rmi "$image" >/dev/null
    for architecture; do
        base=$(base "$architecture")
        # Where PyPI is reached through a proxy, its certificate is among the machine's.
        stored build --quiet --layers --pull=never --identity-label=false --arch "$architecture" --build-arg "BASE=$base" \
            --timestamp "$SOURCE_DATE_EPOCH" --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH" \
            --secret "id=certificates,src=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}" \
            --build-arg PIP_CERT=/run/secrets/certificates \
            --file "deploy/$program/Containerfile" --manifest "$image" . >/dev/null
    done
    layout=$(mktemp -d "$cache/layout.XXXXXX")
    stored manifest push --quiet --all "$image" "oci:$layout:$image" >/dev/null
    tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
        --mode=u+rw,go+r,go-w --directory="$layout" --file="$archive" blobs index.json oci-layout
    rm -r "$layout"
    echo "${RELEASE:+dist/$RELEASE/}$archive"
done
