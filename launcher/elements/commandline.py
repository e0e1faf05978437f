"""<qemu:commandline>: what only QEMU's own command line can say."""

from lxml.builder import ElementMaker
from lxml.etree import _Element as Element

from launcher.guest import Guest
from launcher.guest_pci.bars import Hole, ovmf_window

#: Libvirt's schema domain.rng, qemucmdline.
_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
_QEMU = ElementMaker(namespace=_NAMESPACE, nsmap={"qemu": _NAMESPACE})


def command_line(guest: Guest, hole: Hole | None) -> list[Element]:
    """Return <qemu:commandline> with EFI's window for 64-bit BARs, if it has to be larger than it would be.

    Libvirt has <sysinfo type='fwcfg'> for it, and keeps the names that begin with opt/ovmf/ to itself.
    """
    window = ovmf_window(hole) if hole is not None and guest.is_efi else None
    if window is None:
        return []
    arguments = ("-fw_cfg", f"name=opt/ovmf/X-PciMmio64Mb,string={window}")
    return [_QEMU.commandline(*(_QEMU.arg(value=argument) for argument in arguments))]
