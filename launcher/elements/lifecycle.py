"""<on_reboot> and <on_crash>: what a guest's own reboot, and its panic, do."""

from typing import Literal

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest.devices import PanicDevice

_ON_REBOOT = {"Reboot": "restart", "Terminate": "destroy"}


def lifecycle(policy: Literal["Reboot", "Terminate"] | None) -> list[Element]:
    """Return <on_reboot>; none without a rebootPolicy: libvirt restarts the guest by default, and so does KubeVirt."""
    return [E.on_reboot(_ON_REBOOT[policy])] if policy is not None else []


def on_crash(devices: tuple[PanicDevice, ...]) -> list[Element]:
    """Return <on_crash>: who panics into Hyper-V's device is kept, for its memory to be looked at (KubeVirt)."""
    if any(panic.model == "hyperv" for panic in devices):
        return [E.on_crash("preserve")]
    return []
