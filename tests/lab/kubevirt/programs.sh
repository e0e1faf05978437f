#!/bin/bash
# programs.sh TREE DIR : KubeVirt's programs for the lab, compiled from a tree of its source, into DIR/programs/NAME.xz.
# On Debian 13, whose libvirt the lab's image has, with libvirt-dev, libnbd-dev, gcc, pkg-config, xz-utils and KubeVirt's
# version of Go. Those of a release are the same but for labmanifests: they are in its images, under /usr/bin, and
# libvirt-hook-client is virt-launcher's /etc/libvirt/hooks/qemu.
set -euo pipefail
tree=$1
mkdir -p "$2/programs"
out=$(realpath "$2/programs")
mkdir -p "$tree/cmd/labmanifests"
cp "$(dirname "$0")/labmanifests/main.go" "$tree/cmd/labmanifests"
cd "$tree"
version=kubevirt.io/client-go/version
stamp="-s -w -X $version.gitVersion=$(git describe --tags 2> /dev/null || echo v0.0.0-lab)"
pack() { xz --threads=0 --force "$out/$1"; }
for program in labmanifests virt-{api,controller,handler,chroot,launcher,launcher-monitor,probe,tail,freezer} \
    virt-launcher/libvirt-hook-client; do
    name=${program##*/}
    # These two call libvirt, and what the kernel's headers say; the others run wherever the lab does.
    case $name in virt-launcher | virt-handler) cgo=1 ;; *) cgo=0 ;; esac
    CGO_ENABLED=$cgo go build -mod=vendor -trimpath -buildvcs=false -ldflags "$stamp" -o "$out/$name" "./cmd/$program"
    pack "$name"
done
gcc -O2 -static -o "$out/container-disk" cmd/container-disk-v2alpha/main.c
pack container-disk
