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
_ENTRY = "title guest\nlinux /vmlinuz\ninitrd /initrd\noptions console=ttyS0 quiet\n"


def guest_disk() -> Path:
    """A raw image of a disk with the guest's kernel and initial RAM disk, and a boot loader that starts them."""

    def make(out: Path) -> None:
        with tempfile.TemporaryDirectory(dir=out) as directory:
            scratch = Path(directory)
            _write_esp(scratch, out / "disk.raw")

    return cached("efi-guest", [_INIT, *_MODULES, _ENTRY, node_root(), DEBIAN], make) / "disk.raw"


def _write_esp(scratch: Path, disk: Path) -> None:
    """One file system and no partitions, which is enough for EFI."""
    extract("linux-image-cloud-amd64", scratch)
    extract("systemd-boot-efi", scratch)
    _make_initrd(scratch / "initrd.d", scratch / "usr/lib/modules", scratch / "initrd")
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


def _make_initrd(root: Path, modules: Path, initrd: Path) -> None:
    (root / "modules").mkdir(parents=True)
    for place, name in enumerate(_MODULES):
        (packed,) = modules.rglob(f"{name}.ko.xz")
        (root / "modules" / f"{place}-{name}.ko").write_bytes(subprocess.check_output(["xz", "-dc", packed]))
    copy_busybox(root)
    shutil.copy(_INIT, root / "init")
    write_initrd(root, initrd)
