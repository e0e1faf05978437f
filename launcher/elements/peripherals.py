"""The small devices: inputs, sound, watchdog, TPM, entropy, memory balloon, panic device, vsock."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest.spec import VirtualMachineInstance


def peripherals(vmi: VirtualMachineInstance) -> list[Element]:
    return [E.memballoon(E.stats(period="10"), model="virtio-non-transitional")]
