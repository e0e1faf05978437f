"""Findings about a node's IOMMU: whether it is on, and how to turn it on.

Pure: from a snapshot to findings. The fix depends on the processor, on how the firmware describes the machine, on the
kernel's command line, and on the kernel's use of these.
"""

from pci.host import Platform
from plugin.doctor.finding import Check, NodeFinding, error, fine
from plugin.node.snapshot import Snapshot

#: The prefixes of an IOMMU's units in sysfs, by their drivers in drivers/iommu.
_KINDS = {"dmar": "Intel VT-d", "ivhd": "AMD-Vi", "smmu": "ARM SMMU"}

#: The IOMMU's name in the firmware's setup, by the processor's vendor.
_IN_THE_FIRMWARE = {"GenuineIntel": "VT-d", "AuthenticAMD": "IOMMU (AMD-Vi)", "HygonGenuine": "IOMMU (AMD-Vi)"}

#: The IOMMU's own parameter, by the processor's vendor; the kernel disregards the others'. ARM's has none.
_IOMMU_PARAMETERS = {"GenuineIntel": "intel_iommu", "AuthenticAMD": "amd_iommu", "HygonGenuine": "amd_iommu"}

_VENDORS = {
    "GenuineIntel": "an Intel processor",
    "AuthenticAMD": "an AMD processor",
    "HygonGenuine": "a Hygon processor",
}


def groups(snapshot: Snapshot) -> int:
    """Return the number of IOMMU groups, without the made-up ones of vfio's no-IOMMU mode."""
    return len(snapshot.host.groups.keys() - snapshot.host.noiommu)


def processor(platform: Platform) -> str:
    """Return the kind of the node's processor, in words."""
    return "an ARM processor" if platform.is_arm else _VENDORS.get(platform.cpu_vendor or "", "this processor")


def without_effect(platform: Platform) -> tuple[str, ...]:
    """Return the parameters of the kernel's command line that are for another vendor's IOMMU than the processor's."""
    if not platform.is_arm and platform.cpu_vendor not in _IOMMU_PARAMETERS:
        return ()
    others = set(_IOMMU_PARAMETERS.values()) - {_IOMMU_PARAMETERS.get(platform.cpu_vendor or "")}
    return tuple(line for line in platform.command_line or () if line.partition("=")[0] in others)


def of_iommu(snapshot: Snapshot) -> NodeFinding:
    """Return the finding about the IOMMU, also if it is on."""
    platform = snapshot.inspection.platform
    if not groups(snapshot):
        return error(Check.IOMMU, *why_there_is_none(platform))
    kinds = sorted({kind for unit in platform.iommus for name, kind in _KINDS.items() if unit.startswith(name)})
    return fine(
        Check.IOMMU,
        f"the IOMMU is on: {' and '.join(kinds) or 'of unknown kind'}, "
        f"units: {len(platform.iommus) or 'unknown'}, groups: {groups(snapshot)}",
    )


def why_there_is_none(platform: Platform) -> tuple[str, ...]:
    """Return why there is no IOMMU, the fix, and perhaps further steps. Look first at the kernel's command line, then
    at the kernel's IOMMU units, the firmware's tables, and the hypervisor."""
    if platform.is_arm:
        return _why_arm_has_none(platform)
    vendor, tables = platform.cpu_vendor or "", platform.iommu_tables
    options = [(parameter, *parameter.partition("=")[::2]) for parameter in platform.command_line or ()]
    own = {_IOMMU_PARAMETERS[vendor]} if vendor in _IOMMU_PARAMETERS else set(_IOMMU_PARAMETERS.values())
    off = " ".join(line for line, name, value in options if name in {"iommu", *own} and "off" in value.split(","))
    if off:
        return (
            f"the IOMMU is off: the kernel's command line says {off}",
            f"take {off} out of the kernel's command line, and reboot",
        )
    if platform.iommus:
        return (_not_for_pci(platform), "its log says why: journalctl -k --grep 'DMAR|AMD-Vi|iommu'")
    is_on = any(name == "intel_iommu" and "on" in value.split(",") for _, name, value in options)
    turn_on = () if is_on or "intel_iommu" not in own else ("boot with intel_iommu=on (Intel)",)
    if tables:
        return (
            f"the IOMMU is off, though the firmware announces it (ACPI {', '.join(sorted(tables))})",
            *(turn_on if "DMAR" in tables and turn_on else ("its log says why: journalctl -k --grep 'DMAR|AMD-Vi'",)),
        )
    if platform.virtual_machine:
        return (
            "there is no IOMMU: this node is a virtual machine, and its hypervisor gives it none",
            "to the libvirt domain of this node: <iommu model='intel'>, intremap and caching_mode on",
        )
    firmware = _IN_THE_FIRMWARE.get(vendor, "the IOMMU (VT-d, AMD-Vi, SMMU)")
    if tables is not None:
        return (
            "the IOMMU is off: the firmware announces none (ACPI has neither DMAR nor IVRS)",
            f"turn on {firmware} in the firmware, and reboot",
        )
    return (
        "the IOMMU is off: no PCI function is in an IOMMU group",
        f"turn on {firmware} in the firmware, and reboot",
        *turn_on,
    )


def _why_arm_has_none(platform: Platform) -> tuple[str, ...]:
    """Return why ARM has no IOMMU, and the fix: no parameter counts, and the firmware names the IOMMU of a PCIe
    bridge."""
    wrong = _not_for_pci(platform) if platform.iommus else "there is no IOMMU: the device tree names no SMMU"
    if platform.has_device_tree:
        return (
            wrong,
            "a machine without an SMMU before its PCIe, as a Raspberry Pi, can give no guest a card",
            "one that has an SMMU there needs a device tree with it, and with iommu-map for PCIe",
        )
    if platform.iommus:
        return (wrong, "the firmware's table IORT has to name one for PCIe: install a newer firmware")
    return ("the IOMMU is off: no PCI function is in an IOMMU group", "turn on the SMMU in the firmware, and reboot")


def _not_for_pci(platform: Platform) -> str:
    return f"the IOMMU is none for PCI: the kernel has {', '.join(platform.iommus)}, and no PCI function in a group"
