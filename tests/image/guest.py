"""The Linux in the VM of test_launcher.py: a disk that EFI boots, made of Debian's packages and guest/init.

The lab's guest has a kernel that is built from source; this one is Debian's, as it comes.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.lab.build import DEBIAN, copy_busybox, extract, node_root, write_initrd
from tests.lab.cache import cached, command
from tests.processes import ROOT

_INIT = ROOT / "tests" / "image" / "guest" / "init"
#: In the order in which they are loaded: network card, disk, ISO 9660, power button.
_MODULES = ("failover", "net_failover", "virtio_net", "virtio_blk", "cdrom", "isofs", "button", "evdev")
#: By Debian's package: what the guest runs beside busybox.
_PROGRAMS = {"qemu-guest-agent": "usr/sbin/qemu-ga", "dropbear-bin": "usr/sbin/dropbear"}
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_ENTRY = "title guest\nlinux /vmlinuz\ninitrd /initrd\noptions console=ttyS0 quiet\n"


def guest_disk() -> Path:
    """A raw image of a disk with the guest's kernel and initial RAM disk, and a boot loader that starts them."""

    def make(out: Path) -> None:
        with tempfile.TemporaryDirectory(dir=out) as directory:
            scratch = Path(directory)
            _write_esp(scratch, out / "disk.raw")

    return cached("efi-guest", [_INIT, *_MODULES, *_PROGRAMS, _ENTRY, node_root(), DEBIAN], make) / "disk.raw"


def _write_esp(scratch: Path, disk: Path) -> None:
    """One file system and no partitions, which is enough for EFI."""
    extract("linux-image-cloud-amd64", scratch)
    extract("systemd-boot-efi", scratch)
    for package in _PROGRAMS:
        extract(package, scratch)
    _make_initrd(scratch / "initrd.d", scratch, scratch / "initrd")
    (scratch / "loader.conf").write_text("timeout 0\n")
    (scratch / "guest.conf").write_text(_ENTRY)
    files = {
        "EFI/BOOT/BOOTX64.EFI": scratch / "usr/lib/systemd/boot/efi/systemd-bootx64.efi",
        "loader/loader.conf": scratch / "loader.conf",
        "loader/entries/guest.conf": scratch / "guest.conf",
        "vmlinuz": next(scratch.glob("boot/vmlinuz-*")),
        "initrd": scratch / "initrd",
    }
    command("truncate", "--size=64M", disk)
    command("mformat", "-i", disk, "-F", "-v", "GUEST", "::")
    for directory in ("EFI", "EFI/BOOT", "loader", "loader/entries"):
        command("mmd", "-i", disk, f"::{directory}")
    for name, file in files.items():
        command("mcopy", "-i", disk, file, f"::{name}")


def _make_initrd(root: Path, packages: Path, initrd: Path) -> None:
    (root / "modules").mkdir(parents=True)
    for place, name in enumerate(_MODULES):
        (packed,) = (packages / "usr/lib/modules").rglob(f"{name}.ko.xz")
        (root / "modules" / f"{place:02}-{name}.ko").write_bytes(subprocess.check_output(["xz", "-dc", packed]))
    copy_busybox(root)
    for program in _PROGRAMS.values():
        _copy_program(packages, program, root)
    shutil.copy(_INIT, root / "init")
    write_initrd(root, initrd)


def _copy_program(packages: Path, program: str, root: Path) -> None:
    """A program with the libraries that its loader finds, of that Debian and not of this machine."""
    libraries = packages / _LIBRARIES
    loader = libraries / "ld-linux-x86-64.so.2"
    listed = subprocess.check_output([loader, "--library-path", libraries, "--list", packages / program], text=True)
    needed = [Path(word) for word in listed.split() if word.startswith(str(libraries))]
    (root / _LIBRARIES).mkdir(parents=True, exist_ok=True)
    for library in {loader, *needed}:
        shutil.copy(library, root / _LIBRARIES)
    (root / "lib64").mkdir(exist_ok=True)
    shutil.copy(loader, root / "lib64")
    shutil.copy(packages / program, root / "bin")
