"""The contract between the plugin and the launcher: how a pod learns which devices it was given.

For every resource that a container requests, the plugin sets one environment variable and the launcher reads it.

- **Name.** `PCI_RESOURCE_` and the resource in upper case, with `/` and `.` turned into `_`; every other character
  stays, a hyphen too. Byte for byte KubeVirt's ResourceNameToEnvVar (pkg/util/util.go). Mediated devices use
  `MDEV_PCI_RESOURCE_`, USB devices `USB_RESOURCE_`. The name is derived and never parsed back: `a.b/c` and `a/b.c`
  share a variable, and the plugin refuses to serve both.
- **Value, as written.** One address per requested device, sorted, comma-joined, no repeats. The kubelet hands out
  device IDs in the order of a Go map, so only sorting makes the value repeatable.
- **Value, as read.** One trailing comma and repeats are dropped. Anything that is not an address is an error that names
  the variable and the item. USB devices are `bus:device`, in decimal.
- **Meaning.** An address in the value is usable: its whole IOMMU group is bound to vfio and its nodes are in the
  container. A device is a card (or one virtual function, or one mediated device), named by one of its functions.
- **Partition.** `FABRIC_PARTITION_` and a number, with addresses as above: exactly the GPUs of this partition of
  NVIDIA's Fabric Manager, which is active, so they have NVLink to each other. It explains a guest, and claims nothing.
  For several GPUs `FABRIC_MANAGER_VERSION` is the version that the guest's driver must have, if known.
- **The older dialect.** NVIDIA's plugin before its pull request 191 listed every function of each group. When a value
  has more addresses than there are entries that draw on it, functions of one slot collapse to one card.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar
from uuid import UUID

from pci.address import InvalidPCIAddress, PCIAddress

Item = TypeVar("Item", PCIAddress, UUID)


class DeviceKind(StrEnum):
    """What a variable lists; the value is the prefix of its name (KubeVirt api/core/v1/types.go)."""

    PCI = "PCI_RESOURCE"
    MDEV = "MDEV_PCI_RESOURCE"
    USB = "USB_RESOURCE"


_PARTITION = "FABRIC_PARTITION_"
_IS_PARTITION = re.compile(rf"{_PARTITION}\d{{1,10}}", re.ASCII)

FABRIC_MANAGER = "FABRIC_MANAGER_VERSION"

#: The domain of the resources that are device nodes of the host, unless a flag of the launcher names another.
NODE_DEVICES = "devices.gpu-launcher.dev"


class NodeDevice(StrEnum):
    """A device node of the host that any number of containers may share; the value is the resource's name below its
    domain: `devices.gpu-launcher.dev/kvm`."""

    KVM = "kvm"
    TUN = "tun"
    VHOST_NET = "vhost-net"
    VHOST_VSOCK = "vhost-vsock"
    SEV = "sev"

    @property
    def node(self) -> str:
        """The path of its device file below /dev."""
        return "net/tun" if self is NodeDevice.TUN else self.value

    def resource(self, domain: str = NODE_DEVICES) -> str:
        """Return the resource that a container requests for it."""
        return f"{domain}/{self}"


@dataclass(frozen=True, order=True, slots=True)
class USBAddress:
    """A USB device's numbers, as in /dev/bus/usb/BBB/DDD. It gets another number when it is plugged in again."""

    bus: int
    device: int

    def __str__(self) -> str:
        return f"{self.bus}:{self.device}"


class InvalidValue(ValueError):
    """A variable has an item that the contract does not allow."""

    def __init__(self, variable: str, item: str, expected: str) -> None:
        super().__init__(f"{variable}: {item!r} is not {expected}")


def variable(resource: str, kind: DeviceKind = DeviceKind.PCI) -> str:
    """Return a resource's variable: `PCI_RESOURCE_NVIDIA_COM_GH100` for `nvidia.com/GH100`."""
    return f"{kind}_{resource.upper().replace('/', '_').replace('.', '_')}"


def partition_variable(number: int) -> str:
    """Return the variable of a partition, by the Fabric Manager's number."""
    return f"{_PARTITION}{number}"


def decode_partitions(environ: Mapping[str, str]) -> Mapping[int, tuple[PCIAddress, ...]]:
    """Return the partitions that a pod's variables name, ascending, with the addresses of each; InvalidValue names an
    item that is no address."""
    names = {int(name[len(_PARTITION) :]): name for name in environ if _IS_PARTITION.fullmatch(name)}
    return {number: decode(name, environ[name]) for number, name in sorted(names.items())}


def encode(devices: Iterable[Item]) -> str:
    """Write the value for these devices, one address or UUID each."""
    return ",".join(str(device) for device in sorted(set(devices)))


def decode(variable: str, value: str) -> tuple[PCIAddress, ...]:
    """Read the addresses in a variable's value, in its order; InvalidValue names an item that is no address.

    `a,b,` and `a,b,a` are both (a, b). An empty value has no addresses.
    """
    return tuple(dict.fromkeys(_address(variable, item) for item in _items(value)))


def decode_mdevs(variable: str, value: str) -> tuple[UUID, ...]:
    """Read the mediated devices in a variable's value, in its order; InvalidValue names an item that is no UUID."""
    return tuple(dict.fromkeys(_uuid(variable, item) for item in _items(value)))


def decode_usb(variable: str, value: str) -> tuple[USBAddress, ...]:
    """Read the USB devices in a variable's value, in its order; InvalidValue names an item that is not `bus:device`."""
    return tuple(dict.fromkeys(_usb(variable, item) for item in _items(value)))


def cards(
    addresses: tuple[PCIAddress, ...],
    *,
    wanted: int,
    same_card: Callable[[PCIAddress, PCIAddress], bool] = PCIAddress.shares_slot,
    travels_alone: Callable[[PCIAddress], bool] = lambda _: False,
) -> tuple[PCIAddress, ...]:
    """Return one address per device, whichever dialect the value is written in.

    `wanted` is how many manifest entries draw on the variable. Up to that many addresses stand for themselves, even
    within one slot. More are the older dialect: the first address of each card (`same_card`) that does not travel alone
    stands for it, in order of first appearance. Both functions may ask sysfs; by default the slot decides.
    """
    if len(addresses) <= wanted:
        return addresses
    together: list[list[PCIAddress]] = []
    for address in addresses:
        its = next((each for each in together if same_card(each[0], address)), None)
        if its is None:
            together.append([address])
        else:
            its.append(address)
    return tuple(min(each, key=travels_alone) for each in together)


def _items(value: str) -> list[str]:
    value = value.removesuffix(",")
    return value.split(",") if value else []


def _address(variable: str, item: str) -> PCIAddress:
    try:
        return PCIAddress.parse(item)
    except InvalidPCIAddress:
        raise InvalidValue(variable, item, "a PCI address like 0000:41:00.0") from None


def _uuid(variable: str, item: str) -> UUID:
    try:
        uuid = UUID(item)
    except ValueError:
        uuid = None
    # UUID() also takes braces, "urn:uuid:" and missing hyphens; libvirt and the kernel don't.
    if uuid is None or str(uuid) != item.lower():
        raise InvalidValue(variable, item, "the UUID of a mediated device")
    return uuid


def _usb(variable: str, item: str) -> USBAddress:
    # With or without the noughts of /dev/bus/usb/001/010; libvirt would read them as octal.
    match = re.fullmatch("([0-9]{1,3}):([0-9]{1,3})", item, re.ASCII)
    if match is None or not int(match[1]) or not 1 <= int(match[2]) <= 127:
        raise InvalidValue(variable, item, "a USB device's bus and number like 1:4")
    return USBAddress(int(match[1]), int(match[2]))
