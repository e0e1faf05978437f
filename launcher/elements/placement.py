"""<cputune> and <numatune>: which of the host's CPUs and nodes serve which of the guest's."""

from lxml.etree import _Element as Element

from launcher.facts import Facts
from launcher.manifest.spec import VirtualMachineInstance


def placement(vmi: VirtualMachineInstance, facts: Facts) -> list[Element]:
    return []
