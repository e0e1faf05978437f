"""What stands between a node's devices and a guest, each thing with its fix.

Pure: from what was read of the node to findings. For each device the inventory's own reason counts, in its words; what
is added here are the steps that make the reason go away, and what the inventory doesn't ask: how interrupts are
isolated, whether a card can be reset between two guests, whether the kernel found a place for its memory. Where
something could not be seen, the finding says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import program.finding
from pci.functions import is_gpu, is_on_vfio, is_vfio_driver, what
from pci.platform import Platform
from pci.sysfs.attribute import Silent
from pci.sysfs.functions import IOMMU_GROUPS, OTHER_DRIVER
from pci.viability import END_THE_WAIT, keeps_its_group
from plugin.cards.config import Groups
from plugin.cards.inventory import Device
from plugin.doctor.evidence import Evidence
from plugin.fabric.sight import unknown
from program.problem import Problem, Severity

#: How the units of an IOMMU are called in sysfs, by their drivers in drivers/iommu.
_KINDS = {"dmar": "Intel VT-d", "ivhd": "AMD-Vi", "smmu": "ARM SMMU"}

#: What the firmware's setup calls it, by the processor's vendor.
_IN_THE_FIRMWARE = {"GenuineIntel": "VT-d", "AuthenticAMD": "IOMMU (AMD-Vi)", "HygonGenuine": "IOMMU (AMD-Vi)"}

#: The IOMMU's own parameter, by the processor's vendor; the kernel disregards the others'.
_IOMMU_PARAMETERS = {"GenuineIntel": "intel_iommu", "AuthenticAMD": "amd_iommu", "HygonGenuine": "amd_iommu"}

#: Parameters of the kernel that have to do with passthrough: whole names, and beginnings.
_PARAMETERS = ("amd_iommu", "intel_iommu", "intremap", "iommu", "nointremap", "pci", "pcie_acs_override")
_PARAMETERS_OF_MODULES = ("iommu.", "iommufd.", "vfio.", "vfio_iommu_type1.", "vfio_pci.")


class Check(StrEnum):
    """What a finding is about: first those of the node, then those of each device."""

    OFFER = "offer"
    SYSFS = "sysfs"
    VIRTUAL_MACHINE = "virtual-machine"
    IOMMU = "iommu"
    COMMAND_LINE = "command-line"
    ACS_OVERRIDE = "acs-override"
    INTERRUPTS = "interrupt-remapping"
    NO_IOMMU_MODE = "no-iommu-mode"
    VFIO_DRIVER = "vfio-driver"
    VFIO_IOMMU = "vfio-iommu"
    DEVICE_NODES = "device-nodes"
    FABRIC = "fabric"

    VIABILITY = "viability"
    BOOT_VGA = "boot-vga"
    RESET = "reset"
    BARS = "bars"
    POWER = "power"
    NUMA = "numa"


#: The subject of a finding that is of no device.
NODE = "the node"


@dataclass(frozen=True, slots=True)
class Finding(program.finding.Finding):
    """What was found of a thing. `problem` is about the node, or about the device of that ID: its words go after "it".

    `steps` are commands and alternatives beside the fix, one each.
    """

    check: Check
    steps: tuple[str, ...] = ()

    @property
    def device(self) -> str | None:
        """The ID of the device that it is about; None if it is about the node."""
        return None if self.problem.subject == NODE else self.problem.subject


def _fine(check: Check, words: str) -> Finding:
    return Finding(Severity.OK, Problem(NODE, words, ""), check)


def _note(check: Check, words: str, fix: str = "", *, of: str = NODE) -> Finding:
    return Finding(Severity.NOTE, Problem(of, words, fix), check)


def _warning(check: Check, wrong: str, fix: str, *steps: str, of: str = NODE) -> Finding:
    return Finding(Severity.WARNING, Problem(of, wrong, fix), check, steps)


def _error(check: Check, wrong: str, fix: str, *steps: str, of: str = NODE) -> Finding:
    return Finding(Severity.ERROR, Problem(of, wrong, fix), check, steps)


def examine(evidence: Evidence) -> tuple[Finding, ...]:
    """Return what is to be said of the node, be it fine or not, and what is not fine with its devices, in the
    inventory's order."""
    return (
        _offer(evidence),
        *_faults(evidence),
        *_virtual_machine(evidence.platform),
        _iommu(evidence),
        *_command_line(evidence.platform),
        *_interrupts(evidence),
        *_noiommu_mode(evidence.platform),
        _vfio_driver(evidence),
        _vfio_iommu(evidence.platform),
        _device_nodes(evidence),
        *_fabric(evidence),
        *(finding for device in evidence.devices for finding in _device(evidence, device)),
    )


def parameters(platform: Platform) -> tuple[str, ...]:
    """Return the parameters of the kernel's command line that have to do with passthrough, in its order."""

    def concerns_passthrough(parameter: str) -> bool:
        name = parameter.partition("=")[0].replace("-", "_")
        return name in _PARAMETERS or name.startswith(_PARAMETERS_OF_MODULES)

    return tuple(filter(concerns_passthrough, platform.command_line or ()))


def size(number: int) -> str:
    """Write a size in bytes in the largest unit that keeps it whole: `256 MiB`, `24 GiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if number % 1024:
            return f"{number} {unit}"
        number //= 1024
    return f"{number} GiB"


def _fabric(evidence: Evidence) -> Iterator[Finding]:
    """Yield what is to be said of the partitions that give guests their NVLinks."""
    sight, devices = evidence.sight, evidence.devices
    if sight is None:
        return
    if sight.board is None:
        trouble = sight.trouble or Problem("the Fabric Manager", "was not asked", "report it")
        yield _error(
            Check.FABRIC,
            f"has no partitions of GPUs, so that guests of several have no NVLink: {trouble.subject}: {trouble.wrong}",
            trouble.fix,
            "see whether the Fabric Manager runs in its shared mode (FABRIC_MODE=1), and what the config says of it",
        )
        return
    table, ids = sight.board.table, sight.board.ids
    total = sum(bool(sight.board.gpus(device)) for device in devices)
    words = f"{len(table.partitions)} partitions of GPUs, {len(table.active)} active"
    yield _fine(
        Check.FABRIC,
        f"the Fabric Manager lists {words}; module IDs are known for {len(ids.by_address)} of {total} GPUs",
    )
    for device in unknown(sight, evidence.snapshot.inventory):
        yield _warning(
            Check.FABRIC,
            "has no known module ID: it is for guests of one GPU only",
            "let gpu-plugin bind read it before vfio has the card, or write it to fabric.modules of the config",
            of=device.id,
        )
    for partition in sight.others:
        yield _warning(
            Check.FABRIC,
            f"partition {partition.id} is active, and gpu-plugin does not know for whom: its cards are given to nobody",
            f"end its guest, then deactivate it: fmpm -d {partition.id}",
        )
    for what_failed in table.failed:
        yield _warning(Check.FABRIC, f"{what_failed} has NVLinks that failed", "reset it, or have it replaced")


def _offer(evidence: Evidence) -> Finding:
    if not evidence.devices:
        return _error(
            Check.OFFER,
            "this node has no GPU, and no device that the config offers",
            "see whether lspci -nn lists it",
            "if it is not there: its seat, its power, 'Above 4G Decoding' in the firmware",
        )
    ready = sum(evidence.snapshot.reason(device) is None for device in evidence.devices)
    words = f"devices that can be handed out: {ready} of {len(evidence.devices)}"
    if ready:
        return _fine(Check.OFFER, words)
    return _error(Check.OFFER, words, "what is said of each device says why, and what to do")


def _faults(evidence: Evidence) -> Iterator[Finding]:
    for fault in (*evidence.host.faults, *evidence.platform.faults, *evidence.faults):
        if fault.wrong == Silent.WRONG:
            yield _error(Check.SYSFS, f"{fault.path}: unknown, {fault.wrong}", END_THE_WAIT)
        else:
            yield _warning(Check.SYSFS, f"not read: {fault}", "for a bug report: gpu-plugin record DIR")


def _virtual_machine(platform: Platform) -> Iterator[Finding]:
    if platform.virtual_machine:
        yield _note(
            Check.VIRTUAL_MACHINE,
            "this node is a virtual machine itself, with the IOMMU and the devices that its hypervisor gives it",
        )


def _iommu(evidence: Evidence) -> Finding:
    platform = evidence.platform
    if not evidence.groups:
        # Whoever has the config say so wants it like that.
        finding = _warning if evidence.config.noiommu else _error
        return finding(Check.IOMMU, *_why_there_is_no_iommu(platform))
    kinds = sorted({kind for unit in platform.iommus for name, kind in _KINDS.items() if unit.startswith(name)})
    return _fine(
        Check.IOMMU,
        f"the IOMMU is on: {' and '.join(kinds) or 'of unknown kind'}, "
        f"units: {len(platform.iommus) or 'unknown'}, groups: {evidence.groups}",
    )


def _why_there_is_no_iommu(platform: Platform) -> tuple[str, ...]:
    """Return what is wrong, the fix, and perhaps a further step, by the first of the places that could have turned it
    off, from the last one on."""
    vendor, tables = platform.cpu_vendor or "", platform.iommu_tables
    options = [(parameter, *parameter.partition("=")[::2]) for parameter in platform.command_line or ()]
    own = {_IOMMU_PARAMETERS[vendor]} if vendor in _IOMMU_PARAMETERS else set(_IOMMU_PARAMETERS.values())
    off = " ".join(line for line, name, value in options if name in {"iommu", *own} and "off" in value.split(","))
    if off:
        return (
            f"the IOMMU is off: the kernel's command line says {off}",
            f"take {off} out of the kernel's command line, and reboot",
        )
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


def _command_line(platform: Platform) -> Iterator[Finding]:
    if platform.command_line is None:
        yield _note(
            Check.COMMAND_LINE,
            "the kernel's command line is unknown: /proc was not looked at",
            "gpu-plugin doctor --proc DIR",
        )
        return
    words = " ".join(parameters(platform)) or "nothing about passthrough"
    yield _fine(Check.COMMAND_LINE, f"the kernel's command line says {words}")
    for parameter in platform.command_line:
        if parameter.startswith("pcie_acs_override="):
            yield _warning(
                Check.ACS_OVERRIDE,
                f"the kernel's command line says {parameter}: IOMMU groups look smaller than they are, and guests can "
                "reach each other's devices past the IOMMU",
                f"take {parameter} out of the kernel's command line",
                "use slots whose root port or switch has ACS",
            )


def _interrupts(evidence: Evidence) -> Iterator[Finding]:
    if not evidence.groups:
        return  # the IOMMU remaps them, and that there is none is said
    platform = evidence.platform
    modules = sorted(module for module, allowed in (platform.unsafe_interrupts or {}).items() if allowed)
    unsafe = f"allow_unsafe_interrupts of {' and '.join(modules)} is on"
    forbid = "take allow_unsafe_interrupts out of /etc/modprobe.d and the kernel's command line"
    if platform.interrupt_remapping:
        yield _fine(Check.INTERRUPTS, "interrupts are remapped")
        if modules:
            yield _note(Check.INTERRUPTS, f"{unsafe}, and is not needed: interrupts are remapped", forbid)
    elif platform.interrupt_remapping is None and modules:
        yield _warning(
            Check.INTERRUPTS,
            f"whether interrupts are remapped is unknown, and {unsafe}: a guest might raise any interrupt of the node",
            forbid,
        )
    elif platform.interrupt_remapping is None:
        yield _note(Check.INTERRUPTS, "whether interrupts are remapped is unknown")
    elif modules:
        yield _warning(
            Check.INTERRUPTS,
            f"interrupts are not remapped, and {unsafe}: a guest can raise any interrupt of the node",
            _remaps_interrupts(platform),
        )
    else:
        yield _error(
            Check.INTERRUPTS,
            "interrupts are not remapped, and VFIO gives no guest a device",
            _remaps_interrupts(platform),
            "or, at the node's risk, boot with vfio_iommu_type1.allow_unsafe_interrupts=1",
        )


def _remaps_interrupts(platform: Platform) -> str:
    off = " ".join(line for line in platform.command_line or () if line in ("intremap=off", "nointremap"))
    if off:
        return f"take {off} out of the kernel's command line, and reboot"
    if platform.virtual_machine:
        return "to the libvirt domain of this node: <driver intremap='on'/> in its <iommu>"
    return "turn on interrupt remapping, or x2APIC, in the firmware"


def _noiommu_mode(platform: Platform) -> Iterator[Finding]:
    if platform.noiommu_mode:
        yield _warning(
            Check.NO_IOMMU_MODE,
            "vfio's no-IOMMU mode is on: a device that is used in it can write to all memory of the node",
            "turn it off, now and at every boot",
            "echo N > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode",
            "take enable_unsafe_noiommu_mode out of /etc/modprobe.d and the kernel's command line",
        )


def _vfio_driver(evidence: Evidence) -> Finding:
    bound = {function.driver for function in evidence.host.functions.values() if function.driver is not None}
    drivers = evidence.platform.drivers
    for_vfio = sorted(filter(is_vfio_driver, bound | (drivers or frozenset())))
    if for_vfio:
        return _fine(Check.VFIO_DRIVER, f"drivers that give devices to VFIO: {', '.join(for_vfio)}")
    if drivers is None:
        return _note(Check.VFIO_DRIVER, "whether the kernel has the driver vfio-pci is unknown")
    return _error(
        Check.VFIO_DRIVER,
        "the kernel has no driver that gives devices to VFIO: the module vfio-pci is not loaded",
        "load it, now and at every boot",
        "modprobe vfio-pci",
        "echo vfio-pci > /etc/modules-load.d/vfio-pci.conf",
    )


def _vfio_iommu(platform: Platform) -> Finding:
    if platform.unsafe_interrupts is None:
        return _note(Check.VFIO_IOMMU, "whether the modules vfio_iommu_type1 and iommufd are loaded is unknown")
    if platform.unsafe_interrupts:
        modules = ", ".join(sorted(platform.unsafe_interrupts))
        return _fine(Check.VFIO_IOMMU, f"modules that map a guest's memory: {modules}")
    return _error(
        Check.VFIO_IOMMU,
        "nothing can map a guest's memory: neither vfio_iommu_type1 nor iommufd is loaded",
        "load one of them, now and at every boot",
        "modprobe vfio_iommu_type1",
        "echo vfio_iommu_type1 > /etc/modules-load.d/vfio_iommu_type1.conf",
    )


def _device_nodes(evidence: Evidence) -> Finding:
    nodes = evidence.snapshot.nodes
    if nodes is None:
        return _note(
            Check.DEVICE_NODES,
            "VFIO's device nodes are unknown: /dev was not looked at",
            "gpu-plugin doctor --dev DIR",
        )
    ways = ("/dev/vfio/vfio",) * nodes.has_groups + ("/dev/iommu with /dev/vfio/devices",) * nodes.has_cdevs
    if ways:
        return _fine(Check.DEVICE_NODES, f"ways into VFIO: {', '.join(ways)}")
    return _error(
        Check.DEVICE_NODES,
        "there is no way into VFIO: neither /dev/vfio/vfio nor /dev/iommu with /dev/vfio/devices exists",
        "load VFIO's modules, and in a pod mount /dev/vfio into it",
        "modprobe -a vfio_iommu_type1 vfio-pci",
    )


def _device(evidence: Evidence, device: Device) -> Iterator[Finding]:
    details = evidence.details.get(device.lead.address)
    yield from _viability(evidence, device, is_boot_vga=details is not None and details.boot_vga)
    if device.mdev is not None or evidence.is_left_to_the_node(device):
        return  # what is asked below is its parent's driver's business, or the node's
    # What has no resource goes to no guest, and so not to two.
    if (
        device.resource is not None
        and details is not None
        and evidence.has_no_reset(details)
        and not evidence.bus_is_reset_by_vfio(device)
    ):
        yield _no_reset(evidence, device)
    yield from _bars(evidence, device)
    if details is not None and details.power_state == "D3cold":
        yield _note(
            Check.POWER,
            "is without power (D3cold), and some cards don't wake: 'Unable to change power state from D3cold'",
            f"echo 0 > /sys/bus/pci/devices/{device.lead.address}/d3cold_allowed",
            of=device.id,
        )
    if device.numa_node is None:
        yield _note(
            Check.NUMA,
            "is on no NUMA node that the firmware names: the kubelet can't choose processors close to it",
            "on a node of several sockets: turn on NUMA (ACPI SRAT) in the firmware",
            of=device.id,
        )


def _viability(evidence: Evidence, device: Device, *, is_boot_vga: bool) -> Iterator[Finding]:
    reason = evidence.snapshot.reason(device)
    elsewhere = "choose another card as the primary display in the firmware"
    if is_boot_vga and is_on_vfio(device.lead):
        yield _warning(
            Check.BOOT_VGA,
            f"is the boot VGA, and on {device.lead.driver}: the node has no screen of its own",
            elsewhere,
            of=device.id,
        )
    elif is_boot_vga and reason is not None:
        # A node's screen is in its place there. If that leaves the node with nothing to give, the offer is an error.
        yield _note(
            Check.BOOT_VGA,
            f"is the boot VGA, the node's own screen: {reason.wrong}",
            f"if a guest is to have it: {elsewhere}",
            of=device.id,
        )
        return
    if reason is None:
        return
    if evidence.is_left_to_the_node(device):
        yield _note(
            Check.VIABILITY,
            f"is the processor's own GPU, which no rule of the config asks for: {reason.wrong}",
            f"if a guest is to have it: gpu-plugin bind {device.id}",
            of=device.id,
        )
    elif device.resource is None:
        # Asked for by nobody: the config withholds it, or would have to name it.
        yield _note(Check.VIABILITY, reason.wrong, reason.fix, of=device.id)
    else:
        yield _error(Check.VIABILITY, reason.wrong, reason.fix, *_makes_viable(evidence, device), of=device.id)


def _makes_viable(evidence: Evidence, device: Device) -> tuple[str, ...]:
    """Return the steps beside the fix. None for an IOMMU that is off, which is a finding of the node, and for a
    mediated device, which is its driver's."""
    if device.mdev is not None or device.iommu_group is None:
        return ()
    steps: tuple[str, ...] = ()
    if any(
        not is_on_vfio(member) and (member in device.functions or (member.driver is not None and not member.is_bridge))
        for member in device.members
    ):
        steps = (f"gpu-plugin bind {device.id}",)
    group = f"/sys/{IOMMU_GROUPS}/{device.iommu_group}/devices"
    steps += tuple(
        f"echo {other.name} > {group}/{other.name}/{OTHER_DRIVER}/unbind"
        for other in filter(keeps_its_group, device.others)
        if other.driver is not None
    )
    if not is_on_vfio(device.lead):
        steps += ("if the node is to keep it: a rule with withhold: true in the config",)
    elif evidence.config.groups is Groups.WITHHOLD and any(
        other.id != device.id and other.resource is not None and other.iommu_group == device.iommu_group
        for other in evidence.devices
    ):
        steps += ("if they may go to one guest only: groups: together in the config",)
    return steps


def _no_reset(evidence: Evidence, device: Device) -> Finding:
    strangers = evidence.strangers_on_the_bus(device)
    if device.lead.bridges:
        where = f"it shares its bus with {', '.join(map(what, strangers))}"
    else:
        where = "it sits on the root complex, without a bus of its own"
    return _warning(
        Check.RESET,
        f"cannot be reset between two guests: it has no reset of its own, and {where}, so that a guest finds what the "
        "last one left, and a card that hangs stays so",
        "reboot the node between two guests of it",
        "put the card into another slot",
        of=device.id,
    )


def _bars(evidence: Evidence, device: Device) -> Iterator[Finding]:
    fix = ("turn on 'Above 4G Decoding' (64-bit MMIO) in the firmware", "or boot with pci=realloc")
    for function in device.functions:
        details = evidence.details.get(function.address)
        if details is None or details.bars is None:
            continue
        for bar in details.bars:
            if not bar.assigned:
                yield _error(
                    Check.BARS,
                    f"is not all there: the kernel found no place for BAR {bar.number} of {what(function)}, "
                    f"{size(bar.size)} of {64 if bar.memory_64 else 32}-bit addresses",
                    *fix,
                    of=device.id,
                )
        # The kernel may also forget a BAR for which it found no place (reset_resource in drivers/pci/setup-bus.c).
        if not details.bars and is_gpu(function):
            yield _error(
                Check.BARS,
                f"is not all there: {what(function)} has no BAR, and nothing of its memory can be reached",
                *fix,
                of=device.id,
            )
