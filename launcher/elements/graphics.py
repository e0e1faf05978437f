"""<graphics> and <video>: a screen, which VNC shows on a socket."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.devices.displays import Screen
from launcher.elements.address import guest_address

_MEMORY = "16384"  # KiB, KubeVirt's


def graphics(screen: Screen | None, directory: str) -> list[Element]:
    """Return <graphics> and <video>: VNC on the socket virt-vnc in `directory`, where KubeVirt's is."""
    if screen is None:
        return []
    vram = {"vram": _MEMORY} if screen.has_vram else {}
    video = E.video(E.model(type=screen.model, **vram, heads="1"))
    if screen.address is not None:
        video.append(guest_address(screen.address))
    return [E.graphics(E.listen(type="socket", socket=f"{directory}/virt-vnc"), type="vnc"), video]
