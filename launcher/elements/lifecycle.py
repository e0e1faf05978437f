"""<on_reboot> and <on_crash>: what a guest's own reboot, and its panic, do."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest.spec import Domain

_ON_REBOOT = {"Reboot": "restart", "Terminate": "destroy"}


def lifecycle(domain: Domain) -> list[Element]:
    """Return <on_reboot> for a rebootPolicy, without which libvirt restarts the guest, as KubeVirt does; and <on_crash>
    for a guest that panics into Hyper-V's device, which is kept for a look at its memory (KubeVirt)."""
    panics_to_hyperv = any(panic.model == "hyperv" for panic in domain.devices.panicDevices)
    return [
        *([E.on_reboot(_ON_REBOOT[domain.rebootPolicy])] if domain.rebootPolicy is not None else []),
        *([E.on_crash("preserve")] if panics_to_hyperv else []),
    ]
