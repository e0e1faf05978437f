"""<serial>, <console>, <channel>, <graphics> and <video>: the guest's serial port, its agent and its screen."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.vm.consoles.guest import Screen
from launcher.vm.devices import Devices
from launcher.vm.xml import guest_address

_VIDEO_MEMORY = "16384"  # KiB, KubeVirt's


def consoles(devices: Devices, directory: str, *, names_agent: bool = False) -> list[Element]:
    """Return <serial>, <console> and <channel>.

    The serial port listens on virt-serial0 in `directory`, where KubeVirt's does. libvirt places the channel, unless
    it `names_agent`, in `directory`: libvirt's path is longer.
    """
    agent = [E.source(mode="bind", path=f"{directory}/agent")] if names_agent else []
    channel = E.channel(*agent, E.target(type="virtio", name="org.qemu.guest_agent.0"), type="unix")
    if not devices.autoattachSerialConsole:
        return [channel]
    socket = f"{directory}/virt-serial0"
    serial = E.serial(E.source(mode="bind", path=socket), E.target(port="0"), type="unix")
    if devices.logSerialConsole:
        serial.append(E.log(file=f"{socket}-log", append="on"))
    return [serial, E.console(E.target(type="serial", port="0"), type="pty"), channel]


def graphics(screen: Screen | None, directory: str) -> list[Element]:
    """Return <graphics> and <video>: VNC on the socket virt-vnc in `directory`, where KubeVirt's is."""
    if screen is None:
        return []
    vram = {"vram": _VIDEO_MEMORY} if screen.has_vram else {}
    video = E.video(E.model(type=screen.model, **vram, heads="1"))
    if screen.address is not None:
        video.append(guest_address(screen.address))
    return [E.graphics(E.listen(type="socket", socket=f"{directory}/virt-vnc"), type="vnc"), video]
