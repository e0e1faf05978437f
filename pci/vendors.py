"""The vendors of GPUs: their PCI vendor IDs, and the domains that resources are named below."""

from collections.abc import Mapping

NVIDIA = 0x10DE
AMD = 0x1002
INTEL = 0x8086
#: Further vendor IDs of NVIDIA (ConnectX and BlueField) and of AMD (chipsets and processors).
MELLANOX = 0x15B3
AMD_PROCESSORS = 0x1022

#: The vendors whose GPUs are offered without a rule, and the prefix of their resources.
PREFIXES: Mapping[int, str] = {NVIDIA: "nvidia.com", AMD: "amd.com", INTEL: "intel.com"}

#: By prefix: the vendor IDs of all devices whose resources are named below it.
VENDORS_BELOW: Mapping[str, frozenset[int]] = {
    "nvidia.com": frozenset({NVIDIA, MELLANOX}),
    "amd.com": frozenset({AMD, AMD_PROCESSORS}),
    "intel.com": frozenset({INTEL}),
}
