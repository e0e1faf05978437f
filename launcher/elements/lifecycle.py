"""<on_reboot> and <on_crash>: what a guest's own reboot, and its panic, do."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest.spec import Domain

_ON_REBOOT = {"Reboot": "restart", "Terminate": "destroy"}


def lifecycle(domain: Domain) -> list[Element]:
    """Return <on_reboot>; none without a rebootPolicy: libvirt restarts the guest by default, and so does KubeVirt."""
    return [E.on_reboot(_ON_REBOOT[domain.rebootPolicy])] if domain.rebootPolicy is not None else []


def on_crash(domain: Domain) -> list[Element]:
    """Return <on_crash>: who panics into Hyper-V's device is kept, for its memory to be looked at (KubeVirt)."""
    if any(panic.model == "hyperv" for panic in domain.devices.panicDevices):
        return [E.on_crash("preserve")]
    return []
