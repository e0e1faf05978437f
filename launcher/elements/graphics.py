"""<graphics> and <video>."""

from lxml.etree import _Element as Element

from launcher.manifest.spec import VirtualMachineInstance


def graphics(vmi: VirtualMachineInstance) -> list[Element]:
    return []
