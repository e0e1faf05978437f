"""The device nodes through which a guest's QEMU opens a device, by what the host has.

Two ways lead to VFIO. The older: /dev/vfio/vfio and one node for each IOMMU group. The newer, of kernels with IOMMUFD:
/dev/iommu and one node for each function, /dev/vfio/devices/vfioN (kernel Documentation/driver-api/vfio.rst,
"IOMMUFD and VFIO_GROUP" and "VFIO device cdev"). A host has one of them or both, and each that it has must be complete:
which one a launcher takes is the launcher's choice.
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

_BIND_AGAIN = "bind the whole card to vfio-pci again"


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node: its path on the host and in the container."""

    host: str
    container: str


_VFIO = DeviceNode("/dev/vfio/vfio", "/dev/vfio/vfio")
_IOMMU = DeviceNode("/dev/iommu", "/dev/iommu")


@dataclass(frozen=True, slots=True)
class DeviceNodes:
    """What is below /dev.

    `vfio` are the names in /dev/vfio, `cdevs` those in /dev/vfio/devices, None without that directory; `others` are
    iommu, Grace's egmN, and the node devices that containers share.
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
    """Read what is below the directory that stands for /dev; Refusal if that cannot be told now."""
    vfio = _names(dev / VFIO)
    return DeviceNodes(
        vfio=vfio or frozenset(),
        cdevs=_names(dev / CDEVS),
        others=frozenset(
            {name for name in _names(dev) or () if name == "iommu" or name.startswith("egm")}
            | {device.node for device in NodeDevice if _exists(dev / device.node)}
        ),
    )


def missing_node(device: Device, nodes: DeviceNodes, noiommu: frozenset[int]) -> Hindrance | None:
    """Return which node a device ought to have and has not; None if all are there."""
    if not nodes.has_groups and not nodes.has_cdevs:
        return Hindrance(
            "has no way into VFIO: neither /dev/vfio/vfio nor /dev/iommu with /dev/vfio/devices exists",
            "load the modules vfio_iommu_type1 and vfio_pci, and mount /dev/vfio into the plugin's pod",
        )
    if nodes.has_groups and (name := _group_node(device, noiommu)) not in nodes.vfio:
        return Hindrance(f"has lost its node: /dev/vfio/{name} does not exist", _BIND_AGAIN)
    if nodes.has_cdevs and nodes.cdevs is not None and not device.cdevs <= nodes.cdevs:
        for owner, cdev in _cdevs(device):
            if cdev not in nodes.cdevs:
                missing = f"/dev/vfio/devices/{cdev}" if cdev else "its node in /dev/vfio/devices"
                return Hindrance(f"has lost a node: {missing} of {owner} does not exist", _BIND_AGAIN)
    return None


def device_nodes(device: Device, nodes: DeviceNodes, noiommu: frozenset[int]) -> tuple[DeviceNode, ...]:
    """Return the nodes of a device and of its whole group, by the ways into VFIO that the host has."""
    its: list[DeviceNode] = []
    if nodes.has_groups:
        # Containers find a node of the no-IOMMU mode where it would be with one, as sriov-network-device-plugin has it.
        name = _group_node(device, noiommu)
        its += [_VFIO, DeviceNode(f"/dev/vfio/{name}", f"/dev/vfio/{device.iommu_group}")]
    if nodes.has_cdevs:
        its += [DeviceNode(path, path) for _, cdev in _cdevs(device) for path in [f"/dev/vfio/devices/{cdev}"]]
        its.append(_IOMMU)
    return tuple(its)


def egm_nodes(
    egms: Mapping[str, tuple[PCIAddress, ...]], addresses: Iterable[PCIAddress], nodes: DeviceNodes
) -> tuple[DeviceNode, ...]:
    """Return the nodes of Grace's extended GPU memories that may go along: those whose GPUs are all among these."""
    functions = set(addresses)
    return tuple(
        DeviceNode(f"/dev/{name}", f"/dev/{name}")
        for name, gpus in sorted(egms.items())
        if gpus and functions.issuperset(gpus) and name in nodes.others
    )


def _group_node(device: Device, noiommu: frozenset[int]) -> str:
    return f"noiommu-{device.iommu_group}" if device.iommu_group in noiommu else str(device.iommu_group)


def _cdevs(device: Device) -> Iterable[tuple[str, str | None]]:
    if device.mdev is not None:
        return [(device.id, device.mdev.vfio_device)]
    return [(str(member.address), member.vfio_device) for member in device.members if is_on_vfio(member)]


def _names(directory: Path) -> frozenset[str] | None:
    try:
        return frozenset(os.listdir(directory))
    except OSError as error:
        _require_that_it_is_about(directory, error)
        return None


def _exists(path: Path) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        _require_that_it_is_about(path, error)
        return False
    return True


def _require_that_it_is_about(path: Path, error: OSError) -> None:
    """Refusal if the error says nothing of the path, but that nothing can be read now."""
    if (fix := NO_LISTS.get(error.errno or 0)) is not None:
        raise Refusal(path, f"cannot be read: {error.strerror}", fix) from error
