#!/bin/sh
# What `make` does first: the Debian packages that are missing, and .venv. Called by make when
# .venv/ready is missing or older than what it was made from. More lines of package|why may be given.
set -eu

# package|why
packages='
python3|the programs
python3-venv|.venv
python3-dev|libvirt-python is built from source: Python'\''s headers
gcc|libvirt-python is built from source; the stand-in for libnvfm
pkg-config|libvirt-python finds libvirt with it
libvirt-dev|libvirt, its test driver, its XML schemas, its headers
libvirt-daemon-system|makes the user libvirt-qemu, which libvirt'\''s QEMU driver looks up
libvirt-daemon-driver-qemu|the QEMU driver, embedded in the launcher
qemu-system-x86|QEMU itself
qemu-system-arm|QEMU for arm64: domains are defined, and not run
ovmf|EFI firmware for guests that ask for it
qemu-efi-aarch64|EFI firmware for arm64, which libvirt from Debian 13 on looks for when it defines a domain
passt|the network of guests; Debian 12'\''s libvirt is built without it
swtpm|the TPM of guests that ask for one
swtpm-tools|swtpm_setup, which libvirt makes a TPM with
qemu-utils|qemu-img, which makes the disks of guests
openssl|certificates, which a test makes
libarchive-tools|bsdtar, which makes images of cloud-init'\''s data and the like
pci.ids|the names of PCI devices
'"${1-}"

# Debian 12's is QEMU's own, a part of qemu-system-common.
if [ "$(. /etc/os-release && echo "$VERSION_ID")" != 12 ]; then
    packages="$packages
virtiofsd|the volumes that guests mount"
fi

missing=''
for entry in $(echo "$packages" | cut -d'|' -f1); do
    if [ "$(dpkg-query -W -f='${db:Status-Status}' "$entry" 2>/dev/null)" != installed ]; then
        missing="$missing $entry"
        echo "missing: $entry ($(echo "$packages" | grep "^$entry|" | cut -d'|' -f2))"
    fi
done

if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "This needs root and apt. As root, on Debian 12 or 13:  apt-get install --no-install-recommends$missing"
        exit 1
    fi
    echo "installing them by apt-get: this takes some minutes"
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
fi

# Debian's, as in the images: it is built with more optimization than most that come before it in a PATH.
python=${PYTHON:-/usr/bin/python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "$python is $("$python" --version); expected Python 3.11 or newer, name one with PYTHON=..."
    exit 1
fi
echo "making .venv, with the packages of requirements.txt: this takes a minute or two"
"$python" -m venv .venv
.venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
.venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
touch .venv/ready
