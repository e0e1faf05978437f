"""<interface>: the guest's network cards."""

from lxml.etree import _Element as Element

from launcher.manifest.spec import VirtualMachineInstance


def interfaces(vmi: VirtualMachineInstance) -> list[Element]:
    return []
