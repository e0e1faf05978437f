"""<disk>: what the guest sees of each disk, over the volume that it names."""

from lxml.etree import _Element as Element

from launcher.facts import Facts
from launcher.manifest.spec import VirtualMachineInstance


def disks(vmi: VirtualMachineInstance, facts: Facts) -> list[Element]:
    return []
