"""Resource names: the names of cards in a pod's resource limits.

The name is made of the one in pci.ids, exactly as NVIDIA's kubevirt-gpu-device-plugin makes it (upper case, `/` and `.`
and blanks to `_`, everything else dropped), so that manifests for that plugin work here:
`TU106 [GeForce RTX 2060 Rev. A]` -> `nvidia.com/TU106_GEFORCE_RTX_2060_REV__A`. To be a valid extended resource name,
it is cut to 63 characters and has no `_` at its ends. A device that pci.ids does not know is called by its device ID.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from program.errors import UserError
from program.input import read_input_bytes

#: Debian's package pci.ids; also where hwdata links it on other systems.
PCI_IDS = Path("/usr/share/misc/pci.ids")

_LARGEST = 16 << 20  # ten times the file of 2026
_EXPECTED = "expected the names of PCI devices: install the package pci.ids (hwdata), or name a file with --pci-ids"
_LONGEST = 63
_LONGEST_PREFIX = 253 - len("requests.")  # the quota for it is called requests.PREFIX/NAME
PREFIX = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"


class PCIIDs:
    """A pci.ids file: the names of each vendor's devices by device ID.

    `date` is the day that the file gives for itself; names change with the file.
    """

    def __init__(self, path: Path, date: str, text: str) -> None:
        self.path = path
        self.date = date
        self._text = text
        # The file is large and every look at the node asks: a vendor's section is read once.
        self._vendors: dict[int, Mapping[int, str]] = {}

    def devices(self, vendor_id: int) -> Mapping[int, str]:
        """Return the names of a vendor's devices; empty for a vendor that is not in the file."""
        if vendor_id not in self._vendors:
            section = re.search(rf"^{vendor_id:04x}  .*(?:\n[\t#].*|\n)*", self._text, re.MULTILINE)
            lines = re.finditer(r"^\t([0-9a-f]{4})(?![0-9a-f])(.*)$", section[0] if section else "", re.MULTILINE)
            self._vendors[vendor_id] = {int(line[1], 16): line[2].strip() for line in lines}
        return self._vendors[vendor_id]

    def device(self, vendor_id: int, device_id: int) -> str | None:
        """Return a device's name, as it stands in the file."""
        return self.devices(vendor_id).get(device_id)


def read_pci_ids(path: Path) -> PCIIDs:
    """Read a pci.ids file; UserError if there is none, or it has no vendors."""
    text = read_input_bytes(path, _LARGEST, _EXPECTED).decode(errors="replace")
    if not re.search(r"^[0-9a-f]{4}  \S", text, re.MULTILINE):
        raise UserError(path, "is no pci.ids file", "expected lines like '10de  NVIDIA Corporation'")
    date = re.search(r"^#\s*Date:\s*(\S+)", text, re.MULTILINE)
    return PCIIDs(path=path, date=date[1] if date else "unknown date", text=text)


def resource_name(pci_ids: PCIIDs, prefix: str, vendor_id: int, device_id: int) -> str:
    """Return the resource of a device, by its name in pci.ids: `nvidia.com/GH100_H100_PCIE`."""
    return f"{prefix}/{sanitised(pci_ids.device(vendor_id, device_id) or '') or f'{device_id:04x}'}"


def type_resource_name(prefix: str, type_name: str) -> str | None:
    """Return the resource of a type of mediated devices or vGPUs, as NVIDIA's plugin names it: `GRID T4-1Q` ->
    `nvidia.com/GRID_T4-1Q`. None if that is no valid name (`8 GB / 2`), so that a rule has to give one."""
    resource = f"{prefix}/{'_'.join(type_name.split())}"
    return resource if is_resource_name(resource) else None


def sanitised(name: str) -> str:
    """Return a name of pci.ids as the second half of a resource name; empty if no character of it is allowed."""
    # The order is NVIDIA's (getDeviceName in device_plugin.go): "K. 5" has two underscores, "K.5" one.
    name = re.sub(r"\s+", "_", name.strip().upper().replace("/", "_").replace(".", "_"))
    name = re.sub(r"[^A-Z0-9_]+", "", name)
    return name[:_LONGEST].strip("_")


def is_resource_name(resource: str) -> bool:
    """True if the kubelet takes `prefix/name` as an extended resource (IsExtendedResourceName, IsQualifiedName)."""
    prefix, _, name = resource.partition("/")
    return len(name) <= _LONGEST and re.fullmatch(NAME, name) is not None and is_prefix(prefix)


def is_prefix(prefix: str) -> bool:
    """True if names below `prefix` are extended resources: it is a domain, but none of Kubernetes' own."""
    return (
        len(prefix) <= _LONGEST_PREFIX
        and re.fullmatch(PREFIX, prefix) is not None
        and not prefix.endswith("kubernetes.io")
        and not prefix.startswith("requests.")
    )
