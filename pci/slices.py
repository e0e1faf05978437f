"""The attributes and the capacity of devices in a node's ResourceSlices (resource.k8s.io/v1): the plugin publishes
them, the launcher writes selectors for them and reads them.

Names without a domain are the driver's own: in CEL `device.attributes["gpu-launcher.dev"].model`. The others are
Kubernetes' standard names (k8s.io/dynamic-resource-allocation/deviceattribute). An attribute that is unknown is absent.
"""

import hashlib
import json
import uuid
from typing import Any, TypeAlias

#: The name of the driver, and the domain of its attributes.
DRIVER = "gpu-launcher.dev"

PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
NUMA_NODE = "resource.kubernetes.io/numaNode"
#: The kind of device: `card`, `vf` (a virtual function), `mdev`, or `vgpu`, which is made when it is claimed.
TYPE = "type"
#: PCI vendor ID, `10de`; vendor and device, `10de:1f08`; those of the board, `1462:3756`: as in the plugin's config.
VENDOR, DEVICE, SUBSYSTEM = "vendor", "device", "subsystem"
#: The model as pci.ids has it, and the words by which it is sold: `NVIDIA GeForce RTX 2060 Rev. A`.
MODEL, PRODUCT = "model", "productName"
#: NVML's name of the model and UUID of the card: `NVIDIA A100-SXM4-80GB`, `GPU-8dcd427f-...`.
NVML_NAME, NVML_UUID = "nvmlName", "nvmlUUID"
#: The resource that the device plugin would give the device as; see `fitted`.
RESOURCE = "resource"
#: The upstream port of the PCIe switch that the device is behind.
SWITCH = "switch"
IOMMU_GROUP = "iommuGroup"
#: How many functions go to the guest.
FUNCTIONS = "functions"
#: The driver that has the device on the host.
HOST_DRIVER = "driver"
#: See `place_uuid`; for a mediated device its own UUID.
UUID = "uuid"
#: A mediated device's own UUID, which tells the launcher what it is (KubeVirt's name for it); and the function that it,
#: or a `vgpu`, is a part of.
MDEV_UUID, PARENT = "mdevUUID", "parent"
#: With NVSwitches: the GPU's module ID, 0 if it is not known, and with a number of GPUs, as in `partition4`, the Fabric
#: Manager's ID of the GPU's partition of that size. If it is in several, `partition8_3` is another one.
MODULE_ID, PARTITION = "moduleID", "partition"
#: Beside them the version of the Fabric Manager, which the driver of a guest of several GPUs has to have.
FABRIC_MANAGER_VERSION = "fabricManagerVersion"

#: Capacity, as a quantity: see pci.memory.
MEMORY = "memory"

#: The taint of a device that cannot be handed out now; its value says why, as far as a label's value can.
UNHEALTHY = "gpu-launcher.dev/unhealthy"
#: The taint of a device that is out of service (pci.cordons); its value says who did it, as far as a label's value can.
CORDONED = "gpu-launcher.dev/cordoned"

#: An attribute's value in an object: {"string": "10de"}, {"int": 1}.
Value: TypeAlias = dict[str, str | int | bool]
Attributes: TypeAlias = dict[str, Value]

#: The taint of a device that is a team's alone; its value is the team. A namespace's label of that name says the same.
TEAM = "gpu-launcher.dev/team"

#: Bytes of an attribute's text (DeviceAttributeMaxValueLength, kubernetes/api resource/v1/types.go).
LONGEST = 64
_DIGEST = 8  # hexadecimal digits

#: An arbitrary UUID: the namespace of our UUIDs.
_PLACES = uuid.UUID("6d5b1c0e-63b8-5c9c-9a34-0f6c1d0b8a52")


def device_name_of(address: object) -> str:
    """Return the name of the device with this PCI address: `pci-0000-41-00-0`."""
    return f"pci-{_with_hyphens(address)}"


def vgpu_names_of(address: object) -> str:
    """Return the beginning of the names of a card's vGPUs that are made when claimed: `vgpu-0000-41-00-0-`."""
    return f"vgpu-{_with_hyphens(address)}-"


def is_vgpu(name: str) -> bool:
    """Return whether a device's name is that of a vGPU that is made when claimed."""
    return name.startswith("vgpu-")


def _with_hyphens(address: object) -> str:
    return str(address).replace(":", "-").replace(".", "-")


def fitted(text: str) -> str:
    """Return the text as an attribute can hold it: a text that is too long is cut, and gets a digest to stay unique."""
    if len(text.encode()) <= LONGEST:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]
    return f"{text.encode()[: LONGEST - _DIGEST - 1].decode(errors='ignore')}~{digest}"


def of_resource(resource: str) -> str:
    """Return the expression of CEL that is true for the driver's devices of this resource."""
    return f'device.attributes["{DRIVER}"].?{RESOURCE}.orValue("") == {json.dumps(fitted(resource))}'


def place_uuid(node: str, device_id: str, pci_id: str) -> str:
    """Return the UUID of a card or virtual function: the same for devices of one vendor and device ID at one address of
    one node. The kernel knows no serial number of most cards, and only the vendor's driver knows a card's own UUID."""
    return str(uuid.uuid5(_PLACES, f"{node}/{device_id}/{pci_id}"))


def value_of(attribute: Value) -> Any:
    """Return the value in an attribute: "10de" for {"string": "10de"}."""
    return next(iter(attribute.values()))
