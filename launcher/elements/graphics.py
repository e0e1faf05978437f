"""<graphics> and <video>: a screen, which VNC shows on a socket."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.elements.address import guest_address
from launcher.guest_pci.addresses import SCREEN
from launcher.manifest.spec import Spec

_MEMORY = "16384"  # KiB, KubeVirt's


def graphics(spec: Spec, directory: str) -> list[Element]:
    """Return <graphics> and <video>: VNC on the socket virt-vnc in `directory`, where KubeVirt's is."""
    if not spec.domain.devices.autoattachGraphicsDevice:
        return []
    screen = E.graphics(E.listen(type="socket", socket=f"{directory}/virt-vnc"), type="vnc")
    model = _model(spec)
    video = E.video(model)
    # ramfb is no PCI device; and arm64 has neither VGA nor, behind it, firmware that looks for one.
    if spec.architecture == "amd64" and model.get("type") != "ramfb":
        video.append(guest_address(SCREEN))
    return [screen, video]


def _model(spec: Spec) -> Element:
    video = spec.domain.devices.video
    if video is not None:
        return E.model(type=video.type, vram=_MEMORY, heads="1")
    if spec.architecture == "arm64":
        return E.model(type="virtio", heads="1")
    if spec.domain.firmware.bootloader.efi is not None:
        # What EFI has a driver for, without the registers of a VGA.
        return E.model(type="bochs", heads="1")
    return E.model(type="vga", vram=_MEMORY, heads="1")
