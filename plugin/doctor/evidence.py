"""What the doctor asks of a node: all that the inventory knows, and each function and the node itself from close by."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pci.address import PCIAddress
from pci.functions import is_integrated_gpu, is_on_vfio
from pci.host import Details, Fault, Function, Host
from pci.platform import Platform
from pci.sysfs.attribute import Unreadable
from pci.sysfs.details import read_details
from pci.sysfs.platform import read_platform
from plugin.cards.config import Config
from plugin.cards.inventory import Device, fitting, take_inventory
from plugin.cards.naming import PCIIDs
from plugin.cards.nodes import read_nodes
from plugin.cards.snapshot import Snapshot
from plugin.fabric.sight import Sight


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that was read of the node: `details` of each function of a device, and `faults` of those that could not be
    read. `sight` is what is known of partitions of GPUs; None if the Fabric Manager was not asked."""

    host: Host
    platform: Platform
    snapshot: Snapshot
    details: Mapping[PCIAddress, Details]
    faults: tuple[Fault, ...]
    config: Config
    sight: Sight | None = None

    @property
    def devices(self) -> tuple[Device, ...]:
        return self.snapshot.inventory.devices

    @property
    def groups(self) -> int:
        """How many IOMMU groups there are, without those that vfio made up."""
        return len(self.host.groups.keys() - self.host.noiommu)

    def is_left_to_the_node(self, device: Device) -> bool:
        """Whether the device is the processor's own GPU, and nobody has asked for it: no rule of the config fits it,
        and it is not on VFIO."""
        return (
            device.mdev is None
            and is_integrated_gpu(self.host, device.lead)
            and not is_on_vfio(device.lead)
            and fitting(self.host, device.functions, self.config) is None
        )

    def has_no_reset(self, details: Details) -> bool:
        """Whether the function is known to have no reset of its own."""
        return not details.reset_methods and (details.reset_methods is not None or self.platform.tells_resets)

    def strangers_on_the_bus(self, device: Device) -> tuple[Function, ...]:
        """Return the functions on the bus of a device that are not part of it, and would be reset with it."""
        at = device.lead.address
        return tuple(
            function
            for address, function in self.host.functions.items()
            if (address.domain, address.bus) == (at.domain, at.bus) and function not in device.functions
        )

    def bus_is_reset_by_vfio(self, device: Device) -> bool:
        """Whether VFIO can reset the device by its bus: it does so if all on the bus is VFIO's and it is not the root's
        bus (vfio_pci_dev_set_try_reset in drivers/vfio/pci/vfio_pci_core.c)."""
        return bool(device.lead.bridges) and not self.strangers_on_the_bus(device)


def read_evidence(
    sys: Path, proc: Path | None, dev: Path | None, host: Host, config: Config, pci_ids: PCIIDs
) -> Evidence:
    """Look closely at the node of that /sys, of which `host` was read; without `proc` or `dev`, what stands there is
    unknown.

    Nothing that is read wakes a card: it all comes from the kernel's memory.
    """
    inventory = take_inventory(host, config, pci_ids)
    details: dict[PCIAddress, Details] = {}
    faults: list[Fault] = []
    for function in (function for device in inventory.devices for function in device.functions):
        try:
            details[function.address] = read_details(sys, function.address)
        except Unreadable as unreadable:
            faults.append(unreadable.fault)
    return Evidence(
        host=host,
        platform=read_platform(sys, proc),
        snapshot=Snapshot(inventory, None if dev is None else read_nodes(dev)),
        details=details,
        faults=tuple(faults),
        config=config,
    )
