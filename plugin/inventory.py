"""What a node has to give: every device on offer, and for every GPU that is not, the reason.

A pure function of what sysfs said, the config and pci.ids. Allocate asks it anew, so that the rules for offering a
device and for handing it out are one.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pci.address import PCIAddress
from pci.resource import variable
from pci.sysfs import Function, Host
from plugin.config import Config
from plugin.errors import Refusal
from plugin.naming import PREFIXES, PCIIDs, resource_name

_DISPLAY = 0x03
_PROCESSING_ACCELERATOR = 0x1200
_AMD = 0x1002

#: Drivers that hold a function without touching it: the kernel counts them as none (drivers/vfio, "viable").
_PLACEHOLDERS = ("pci-stub",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The unit of a request: a card, or one virtual function.

    `functions` are ascending; the first one's address is the device's ID. `lead` is the one it is wanted for: the GPU,
    or what the config's rule fits. `resource` is None for a GPU that no rule and no vendor prefix gives a name.
    `reason` says why it is not on offer; None when it is.
    """

    functions: tuple[Function, ...]
    lead: Function
    model: str
    resource: str | None
    reason: str | None

    @property
    def address(self) -> PCIAddress:
        return self.functions[0].address

    @property
    def iommu_group(self) -> int | None:
        return self.functions[0].iommu_group

    @property
    def numa_node(self) -> int | None:
        return self.functions[0].numa_node


@dataclass(frozen=True)
class Inventory:
    """The devices of a node, by address; and what of sysfs could not be read, one line each."""

    devices: tuple[Device, ...]
    faults: tuple[str, ...]

    @property
    def on_offer(self) -> Mapping[str, tuple[Device, ...]]:
        """The devices that can be handed out, by resource, both ascending."""
        offered: dict[str, list[Device]] = defaultdict(list)
        for device in self.devices:
            if device.resource is not None and device.reason is None:
                offered[device.resource].append(device)
        return {resource: tuple(offered[resource]) for resource in sorted(offered)}

    def device(self, address: PCIAddress) -> Device | None:
        return next((device for device in self.devices if device.address == address), None)


def take_inventory(host: Host, config: Config, pci_ids: PCIIDs) -> Inventory:
    """Every GPU of the host and every device the config asks for, each with its resource or the reason why not.

    Refusal where two resources share one environment variable: a pod could not tell them apart.
    """
    cards = (host.card(address) for address in host.functions)
    # By its first function each card once, and ascending, as the host's functions are.
    wanted = {
        card[0].address: card for card in cards if card and (config.fitting(card) is not None or any(map(is_gpu, card)))
    }
    units = tuple(wanted.values())
    devices = tuple(_device(host, card, units, config, pci_ids) for card in units)
    _refuse_colliding_variables(device.resource for device in devices if device.resource is not None)
    return Inventory(devices=devices, faults=tuple(map(str, host.faults)))


def is_gpu(function: Function) -> bool:
    """Display controllers (class 03xx); AMD's accelerators are processing accelerators (1200)."""
    return function.pci_class >> 16 == _DISPLAY or (
        function.vendor_id == _AMD and function.pci_class >> 8 == _PROCESSING_ACCELERATOR
    )


def is_vfio_driver(driver: str) -> bool:
    """vfio-pci and its variants for single devices: nvgrace_gpu_vfio_pci, mlx5_vfio_pci, hisi-acc-vfio-pci."""
    return driver.replace("-", "_").endswith("vfio_pci")


def _device(
    host: Host,
    card: tuple[Function, ...],
    units: tuple[tuple[Function, ...], ...],
    config: Config,
    pci_ids: PCIIDs,
) -> Device:
    fitting = config.fitting(card)
    lead = next(filter(is_gpu, card), None) or (fitting[1] if fitting else card[0])
    resource = fitting[0].resource if fitting else None
    if resource is None and lead.vendor_id in PREFIXES:
        resource = resource_name(pci_ids, lead.vendor_id, lead.device_id)
    return Device(
        functions=card,
        lead=lead,
        model=pci_ids.device(lead.vendor_id, lead.device_id) or lead.pci_id,
        resource=resource,
        reason=_reason(host, card, units, lead, resource),
    )


def _reason(
    host: Host,
    card: tuple[Function, ...],
    units: tuple[tuple[Function, ...], ...],
    lead: Function,
    resource: str | None,
) -> str | None:
    """Why the card cannot be handed out, in words that say what would help; None when it can."""
    if lead.is_bridge:
        return "is a PCI bridge, which no guest can be given; offer the devices behind it"
    if resource is None:
        return f"has vendor {lead.vendor_id:04x}, offered only by a config: add a rule with device: {lead.pci_id!r}"
    group = lead.iommu_group
    if group is None:
        return (
            "is in no IOMMU group: the IOMMU is off; turn on VT-d or AMD-Vi in the firmware, "
            "and boot with intel_iommu=on (Intel)"
        )
    if lead.driver is None:
        return "is bound to no driver; bind the whole card to vfio-pci"
    if not is_vfio_driver(lead.driver):
        return f"is bound to {lead.driver}; bind the whole card to vfio-pci"
    if group in host.noiommu:
        return (
            f"is in group {group} of vfio's no-IOMMU mode, in which no guest can be given a device; turn the IOMMU on"
        )
    if lead.physical_function is not None:
        physical = host.functions.get(lead.physical_function)
        if physical is not None and physical.driver is not None and is_vfio_driver(physical.driver):
            # The kernel then asks for a token that no domain of ours has (vfio_pci_validate_vf_token).
            return (
                f"is a virtual function of {physical.address}, which is on {physical.driver} itself; "
                f"bind {physical.address} to its own driver"
            )
    for address in host.groups[group]:
        member = host.functions.get(address)
        if member is None:
            return f"is in group {group}, which is not viable: {address} cannot be read"
        if member.is_bridge:
            continue
        what = f"{address} ({_CLASS_WORDS.get(member.pci_class >> 8, f'class {member.pci_class >> 8:04x}')})"
        if member.driver is None or member.driver in _PLACEHOLDERS:
            # The kernel would let the group be opened; but the guest gets the card whole, this function included.
            if member in card:
                return f"is not whole: {what} is bound to {member.driver or 'no driver'}; bind it to vfio-pci"
        elif not is_vfio_driver(member.driver):
            cure = "bind it to vfio-pci" if member in card else "bind it to vfio-pci or to no driver"
            return f"is in group {group}, which is not viable: {what} is bound to {member.driver}; {cure}"
    others = [
        other[0].address
        for other in units
        if other is not card and other[0].iommu_group == group and not other[0].is_bridge
    ]
    if others:
        return (
            f"shares group {group} with {', '.join(map(str, others))}, and a guest gets a group whole or not at all; "
            "a slot whose root port or switch has ACS gives each a group of its own"
        )
    return None


_CLASS_WORDS = {
    0x0300: "VGA",
    0x0302: "3D controller",
    0x0380: "display",
    0x0403: "audio",
    0x0C03: "USB",
    0x0C80: "UCSI",
    0x0200: "network",
    0x0108: "NVMe",
}


def _refuse_colliding_variables(resources: Iterable[str]) -> None:
    by_variable: dict[str, str] = {}
    for resource in sorted(set(resources)):
        other = by_variable.setdefault(variable(resource), resource)
        if other != resource:
            raise Refusal(
                f"resources {other} and {resource} would share the variable {variable(resource)}; "
                "give one of them another name in the config"
            )
