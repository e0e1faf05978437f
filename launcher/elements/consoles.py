"""<serial>, <console> and <channel>: the guest's serial port and its agent's channel."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest.spec import VirtualMachineInstance


def consoles(vmi: VirtualMachineInstance) -> list[Element]:
    return [
        E.serial(E.target(port="0"), type="pty"),
        E.console(E.target(type="serial", port="0"), type="pty"),
    ]
