"""<features>: what the machine and the hypervisor offer to the guest."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest.spec import VirtualMachineInstance


def features(vmi: VirtualMachineInstance) -> list[Element]:
    return [E.features(E.acpi(), E.apic())]
