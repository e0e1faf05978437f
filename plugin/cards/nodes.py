"""The device nodes through which a guest's QEMU opens a device.

Two ways lead to VFIO. The older: /dev/vfio/vfio and one node for each IOMMU group. The newer, of kernels with IOMMUFD:
/dev/iommu and one node for each function, /dev/vfio/devices/vfioN (kernel Documentation/driver-api/vfio.rst,
"IOMMUFD and VFIO_GROUP" and "VFIO device cdev"). A host has one of them or both. A device needs its nodes of each way
that the host has, because the launcher chooses between them.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pci.address import PCIAddress
from pci.functions import is_on_vfio
from pci.resource import NodeDevice
from pci.sysfs.attribute import NO_LISTS
from pci.viability import Hindrance
from plugin.cards.inventory import Device
from program.errors import Refusal

VFIO = "vfio"
CDEVS = "vfio/devices"

_OTHERS = {"iommu", *(device.node for device in NodeDevice)}
_BIND_AGAIN = "bind the whole card to vfio-pci again"


@dataclass(frozen=True, slots=True)
class DeviceNodes:
    """The relevant entries below /dev.

    `vfio` are the names in /dev/vfio, `cdevs` those in /dev/vfio/devices, None without that directory; `others` are
    iommu, Grace's egmN, and the node devices that containers share (`kvm`, `net/tun`).
    """

    vfio: frozenset[str]
    cdevs: frozenset[str] | None
    others: frozenset[str]

    @property
    def has_groups(self) -> bool:
        return "vfio" in self.vfio

    @property
    def has_cdevs(self) -> bool:
        return self.cdevs is not None and "iommu" in self.others


def read_nodes(dev: Path) -> DeviceNodes:
    """Read the directory that stands for /dev; Refusal if this process can list no directory now."""
    names = {*(_names(dev) or ()), *(f"net/{name}" for name in _names(dev / "net") or ())}
    return DeviceNodes(
        vfio=_names(dev / VFIO) or frozenset(),
        cdevs=_names(dev / CDEVS),
        others=frozenset(name for name in names if name in _OTHERS or name.startswith("egm")),
    )


def missing_node(device: Device, nodes: DeviceNodes) -> Hindrance | None:
    """Return the hindrance that a node of a device does not exist; None if all exist."""
    if not nodes.has_groups and not nodes.has_cdevs:
        return Hindrance(
            "has no way into VFIO: neither /dev/vfio/vfio nor /dev/iommu with /dev/vfio/devices exists",
            "load the modules vfio_iommu_type1 and vfio_pci, and mount /dev/vfio into the plugin's pod",
        )
    for group in device.iommu_groups if nodes.has_groups else ():
        if str(group) not in nodes.vfio:
            return Hindrance(f"has lost its node: /dev/vfio/{group} does not exist", _BIND_AGAIN)
    if nodes.has_cdevs and nodes.cdevs is not None:
        for owner, cdev in _cdevs(device):
            if cdev not in nodes.cdevs:
                missing = f"/dev/vfio/devices/{cdev}" if cdev else "its node in /dev/vfio/devices"
                return Hindrance(f"has lost a node: {missing} of {owner} does not exist", _BIND_AGAIN)
    return None


def device_nodes(device: Device, nodes: DeviceNodes) -> tuple[str, ...]:
    """Return the paths of the nodes of a device and of its whole groups, by the ways into VFIO that the host has."""
    its: list[str] = []
    if nodes.has_groups:
        its += ["/dev/vfio/vfio", *(f"/dev/vfio/{group}" for group in device.iommu_groups)]
    if nodes.has_cdevs:
        its += [*(f"/dev/vfio/devices/{cdev}" for _, cdev in _cdevs(device)), "/dev/iommu"]
    return tuple(its)


def egm_nodes(
    egms: Mapping[str, tuple[PCIAddress, ...]], addresses: set[PCIAddress], nodes: DeviceNodes
) -> tuple[str, ...]:
    """Return the paths of the nodes of Grace's extended GPU memories whose GPUs are all among these addresses."""
    return tuple(
        f"/dev/{name}"
        for name, gpus in sorted(egms.items())
        if gpus and addresses >= set(gpus) and name in nodes.others
    )


def _cdevs(device: Device) -> Iterable[tuple[str, str | None]]:
    if device.mdev is not None:
        return [(device.id, device.mdev.vfio_device)]
    return [(str(member.address), member.vfio_device) for member in device.members if is_on_vfio(member)]


def _names(directory: Path) -> frozenset[str] | None:
    try:
        return frozenset(os.listdir(directory))
    except OSError as error:
        # Such an error says nothing about the directory: this process can read nothing now.
        if (fix := NO_LISTS.get(error.errno or 0)) is not None:
            raise Refusal(directory, f"cannot be read: {error.strerror}", fix) from error
        return None
