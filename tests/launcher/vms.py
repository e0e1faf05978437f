"""Manifests for tests: a small VMI as YAML text, and its parts."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from launcher import claims
from launcher.claims import Claim, Device, LeftOver
from launcher.domain import domain_element, serialised
from launcher.facts import Facts
from launcher.guest_pci.addresses import Layout, layout
from launcher.hostdevs import Card, whole_cards
from launcher.manifest.devices import Devices
from launcher.manifest.hostdevices import GPU, HostDevice, Request
from launcher.manifest.spec import VirtualMachineInstance
from pci.host import Host

#: Its libvirt, 9.0.0, is built without passt; `libvirt.getVersion()` of later ones is greater.
DEBIAN_12 = 9_000_000

RTX_2060 = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
RTX_2060_VARIABLE = "PCI_RESOURCE_NVIDIA_COM_TU106_GEFORCE_RTX_2060_REV__A"
RTX_3090 = "nvidia.com/GA102_GEFORCE_RTX_3090"
RTX_3090_VARIABLE = "PCI_RESOURCE_NVIDIA_COM_GA102_GEFORCE_RTX_3090"


def vmi_text(*, domain: str = "", gpus: Iterable[tuple[str, str]] = (), name: str = "vm") -> str:
    """A VirtualMachineInstance with these gpus, and `domain` as further lines below spec.domain.

    Without a network: Debian 12's libvirt is built without passt.
    """
    entries = "".join(f"\n      - {{name: {gpu}, deviceName: {resource}}}" for gpu, resource in gpus)
    return (
        "apiVersion: kubevirt.io/v1\n"
        "kind: VirtualMachineInstance\n"
        f"metadata: {{name: {name}}}\n"
        "spec:\n"
        "  domain:\n"
        "    memory: {guest: 1Gi}\n"
        f"    devices:\n      gpus:{entries or ' []'}\n      autoattachPodInterface: false\n"
        f"{domain}"
    )


def write_vmi(path: Path, **parts: object) -> Path:
    path.write_text(vmi_text(**parts))  # type: ignore[arg-type]
    return path


def devices(*, gpus: Iterable[tuple[str, str]] = (), host_devices: Iterable[tuple[str, str]] = ()) -> Devices:
    return Devices(
        gpus=tuple(GPU(name=name, deviceName=resource) for name, resource in gpus),
        hostDevices=tuple(HostDevice(name=name, deviceName=resource) for name, resource in host_devices),
    )


def claim(
    wanted: Devices, environ: Mapping[str, str], host: Host | None, allocated: Mapping[Request, Device] | None = None
) -> tuple[tuple[Claim, ...], tuple[LeftOver, ...]]:
    """A claim for each entry, and what is left over; the first error, where an entry can have none."""
    claimed = claims.claim(wanted, environ, host, allocated or {})
    for error in claimed.unmet.values():
        raise error
    return claimed.claims, claimed.left_over


def cards_of(vmi: VirtualMachineInstance, environ: Mapping[str, str], host: Host | None) -> tuple[Card, ...]:
    return whole_cards(*claim(vmi.spec.domain.devices, environ, host), host)


def laid_out(wanted: Devices, environ: Mapping[str, str], host: Host | None = None) -> Layout:
    """All stages from the manifest's devices to their places."""
    return layout(whole_cards(*claim(wanted, environ, host), host))


def domain_xml(vmi: VirtualMachineInstance, layout: Layout, facts: Facts) -> str:
    """The domain of a VM with these seats, none of whose CPUs is pinned."""
    return serialised(domain_element(vmi, layout, facts))
