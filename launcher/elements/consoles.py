"""<serial>, <console> and <channel>: the guest's serial port and its agent's channel."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest.devices import Devices


def consoles(devices: Devices, directory: str) -> list[Element]:
    """Return <serial>, <console> and <channel>.

    The serial port listens on virt-serial0 in `directory`, where KubeVirt's does. libvirt places the channel.
    """
    channel = E.channel(E.target(type="virtio", name="org.qemu.guest_agent.0"), type="unix")
    if not devices.autoattachSerialConsole:
        return [channel]
    socket = f"{directory}/virt-serial0"
    serial = E.serial(E.source(mode="bind", path=socket), E.target(port="0"), type="unix")
    if devices.logSerialConsole:
        serial.append(E.log(file=f"{socket}-log", append="on"))
    return [serial, E.console(E.target(type="serial", port="0"), type="pty"), channel]
