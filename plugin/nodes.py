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
from plugin.inventory import Device

VFIO = "vfio"
CDEVS = "vfio/devices"


@dataclass(frozen=True, slots=True)
class Node:
    """A device node: its path on the host and in the container."""

    host: str
    container: str


_VFIO = Node("/dev/vfio/vfio", "/dev/vfio/vfio")
_IOMMU = Node("/dev/iommu", "/dev/iommu")


@dataclass(frozen=True, slots=True)
class Nodes:
    """What is below /dev: the names in /dev/vfio; those in /dev/vfio/devices, None without the directory; and what else
    is of interest: iommu, Grace's egmN, the node devices that containers share."""

    vfio: frozenset[str]
    cdevs: frozenset[str] | None
    others: frozenset[str]

    @property
    def has_groups(self) -> bool:
        return "vfio" in self.vfio

    @property
    def has_cdevs(self) -> bool:
        return self.cdevs is not None and "iommu" in self.others


def read_nodes(dev: Path) -> Nodes:
    """What is below the directory that stands for /dev."""
    vfio = _names(dev / VFIO)
    return Nodes(
        vfio=vfio or frozenset(),
        cdevs=_names(dev / CDEVS),
        others=frozenset(
            {name for name in _names(dev) or () if name == "iommu" or name.startswith("egm")}
            | {device.node for device in NodeDevice if os.path.exists(dev / device.node)}
        ),
    )


def missing_node(device: Device, nodes: Nodes, noiommu: frozenset[int]) -> str | None:
    """The node that a device ought to have and has not, in words that go after "it"; None where all are there."""
    if not nodes.has_groups and not nodes.has_cdevs:
        return (
            "has no way into VFIO: neither /dev/vfio/vfio nor /dev/iommu with /dev/vfio/devices exists; "
            "load the modules vfio_iommu_type1 and vfio_pci, and mount /dev/vfio into the plugin's pod"
        )
    if nodes.has_groups and (name := _group_node(device, noiommu)) not in nodes.vfio:
        return f"has lost its node: /dev/vfio/{name} does not exist; bind the whole card to vfio-pci again"
    if nodes.has_cdevs and nodes.cdevs is not None and not device.cdevs <= nodes.cdevs:
        for holder, cdev in _cdevs(device):
            if cdev not in nodes.cdevs:
                missing = f"/dev/vfio/devices/{cdev}" if cdev else "its node in /dev/vfio/devices"
                return f"has lost a node: {missing} of {holder} does not exist; bind the whole card to vfio-pci again"
    return None


def device_nodes(device: Device, nodes: Nodes, noiommu: frozenset[int]) -> tuple[Node, ...]:
    """The nodes of a device and of its whole group, by the ways that the host has."""
    found: list[Node] = []
    if nodes.has_groups:
        # Containers find a node of the no-IOMMU mode where it would be with one, as sriov-network-device-plugin has it.
        name = _group_node(device, noiommu)
        found += [_VFIO, Node(f"/dev/vfio/{name}", f"/dev/vfio/{device.iommu_group}")]
    if nodes.has_cdevs:
        found += [Node(path, path) for _, cdev in _cdevs(device) for path in [f"/dev/vfio/devices/{cdev}"]]
        found.append(_IOMMU)
    return tuple(found)


def egm_nodes(
    egms: Mapping[str, tuple[PCIAddress, ...]], addresses: Iterable[PCIAddress], nodes: Nodes
) -> tuple[Node, ...]:
    """Grace's extended GPU memories that may go along: those whose GPUs are all among these."""
    given = set(addresses)
    return tuple(
        Node(f"/dev/{name}", f"/dev/{name}")
        for name, gpus in sorted(egms.items())
        if gpus and given.issuperset(gpus) and name in nodes.others
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
    except OSError:
        return None
