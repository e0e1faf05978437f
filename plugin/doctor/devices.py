"""Findings about each device.

Pure: from a snapshot to findings. They repeat the snapshot's reason, and add steps to fix it. They also have troubles
of devices that are offered nevertheless: a card that cannot be reset between two guests, a BAR without a place.
"""

from collections.abc import Iterator

from pci.cards import card_of, cards_of
from pci.functions import is_gpu, is_grace_gpu, is_on_vfio, what
from pci.host import Details, Function
from pci.sysfs.functions import IOMMU_GROUPS, OTHER_DRIVER
from pci.viability import BOOT_VGA, NO_IOMMU, NO_VGPU_YET, in_parts, is_boot_vga, keeps_its_group, strangers
from plugin.cards.config import Groups
from plugin.cards.inventory import (
    BMC_SCREEN,
    CONSOLE,
    CUT_FOR_CLAIMS,
    Device,
    deadly_reset_of,
)
from plugin.cards.rules import NOTHING, is_left_to_the_node, wanted_settings
from plugin.doctor.finding import Check, NodeFinding, error, note, warning
from plugin.doctor.iommu import why_there_is_none
from plugin.node.snapshot import DeviceState, Snapshot


def size(number: int) -> str:
    """Write a size in bytes in the largest unit that keeps it whole: `256 MiB`, `24 GiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if number % 1024:
            return f"{number} {unit}"
        number //= 1024
    return f"{number} GiB"


def of_device(snapshot: Snapshot, device: Device) -> Iterator[NodeFinding]:
    """Yield the findings about a device."""
    details = snapshot.inspection.details.get(device.lead.address)
    yield from _viability(snapshot, device)
    yield from _left_behind(device)
    if device.mdev is not None or is_the_nodes(snapshot, device) or is_for_parts(snapshot, device):
        return  # the rest concerns its parent's driver, or the node
    # A device without a resource is given to no guest, and so not to two.
    if (
        device.resource is not None
        and (deadly := deadly_reset_of(snapshot.host, device.functions, snapshot.config)) is not None
    ):
        yield warning(
            Check.RESET,
            deadly.wrong,
            deadly.fix,
            "until then: deadly_resets: withhold in the config keeps it from guests",
            of=device.id,
        )
    elif (
        device.resource is not None
        and details is not None
        and has_no_reset(snapshot, details)
        and not bus_is_reset_by_vfio(snapshot, device)
    ):
        yield _no_reset(snapshot, device)
    if device.resource is not None and any(map(is_grace_gpu, device.functions)):
        yield warning(
            Check.GRACE,
            "is the GPU of a Grace superchip, whose guest needs an SMMUv3 with ATS and NUMA nodes for its memory: "
            "gpu-launcher refuses it, and so does KubeVirt without its gate GraceIOVirtualization",
            "turn on the gates GraceIOVirtualization, IOMMUFD and PCINUMAAwareTopology, for KubeVirt's VMs",
            "or keep it from guests: a rule with withhold: true in the config",
            of=device.id,
        )
    yield from _not_as_wanted(snapshot, device)
    yield from _bars(snapshot, device)
    if details is not None and details.power_state == "D3cold":
        yield note(
            Check.POWER,
            "is without power (D3cold), and some cards don't wake: 'Unable to change power state from D3cold'",
            f"d3cold_allowed: false in its rule of the config, or echo 0 > /sys/bus/pci/devices/{device.lead.address}/"
            "d3cold_allowed",
            of=device.id,
        )
    yield from _errors(snapshot, device)
    if device.numa_node is None:
        yield note(
            Check.NUMA,
            "is on no NUMA node that the firmware names: the kubelet can't choose processors close to it",
            "on a node of several sockets: turn on NUMA (ACPI SRAT) in the firmware",
            of=device.id,
        )


def _viability(snapshot: Snapshot, device: Device) -> Iterator[NodeFinding]:
    reason, lead = snapshot.reason(device), device.lead
    has_screen = lead.boot_vga and device.mdev is None
    if has_screen and is_on_vfio(lead):
        wrong = f"is the boot VGA, and on {lead.driver}: the node has no screen of its own"
        if is_boot_vga(snapshot.host, lead) == BOOT_VGA:
            yield warning(Check.BOOT_VGA, wrong, BOOT_VGA.fix, of=device.id)
        else:
            yield note(Check.BOOT_VGA, wrong, of=device.id)  # no other card could have it
    if reason is None:
        return
    if snapshot.state(device) is DeviceState.CORDONED:
        yield note(Check.VIABILITY, reason.wrong, reason.fix, of=device.id)
    elif device.withheld in (BMC_SCREEN, CONSOLE) or is_for_parts(snapshot, device):
        # These findings stay as they are: guests get the parts of such a card.
        yield note(Check.VIABILITY, reason.wrong, reason.fix, of=device.id)
    elif has_screen and not is_on_vfio(lead):
        # A node's screen belongs on its driver. If nothing else is left to hand out, another finding is an error.
        yield note(Check.BOOT_VGA, reason.wrong, f"if a guest is to have it: {reason.fix}", of=device.id)
    elif device.resource is None or is_the_nodes(snapshot, device):
        # Nobody requests it: the config withholds it, or does not name it.
        yield note(Check.VIABILITY, reason.wrong, reason.fix, of=device.id)
    else:
        fixes = (reason.fix, *_makes_viable(snapshot, device))
        if reason == NO_IOMMU:
            fixes = why_there_is_none(snapshot.inspection.platform)[1:]
        yield error(Check.VIABILITY, reason.wrong, *fixes, of=device.id)


def _makes_viable(snapshot: Snapshot, device: Device) -> tuple[str, ...]:
    """Return further steps beside the fix; none for a device without an IOMMU group, which is a finding about the node,
    nor for a mediated device, which its driver makes viable."""
    if device.mdev is not None or device.iommu_group is None:
        return ()
    steps: tuple[str, ...] = ()
    host, reason = snapshot.host, snapshot.reason(device)
    others = strangers(host, device.functions)
    sharing = [
        other
        for other in snapshot.inventory.devices
        if other.resource is not None and other.iommu_group == device.iommu_group
        if other.id != device.id and snapshot.config.groups is Groups.WITHHOLD
    ]
    # Where the node has the group's other functions, bind refuses; where it shares its group, that changes nothing.
    is_spare = reason is not None and reason.to_bind is not None
    if not sharing and (is_spare if others else not all(map(is_on_vfio, device.functions))):
        cards = cards_of(host, sorted(function.address for function in (*device.functions, *others)))
        steps = (f"gpu-plugin bind {' '.join(str(card[0].address) for card in cards)}",)
    steps += tuple(
        f"echo {other.name} > /sys/{IOMMU_GROUPS}/{group}/devices/{other.name}/{OTHER_DRIVER}/unbind"
        for group, other in device.others
        if keeps_its_group(other) and other.driver is not None and not others
    )
    if sharing:
        as_one = (
            ""
            if {other.resource for other in sharing} == {device.resource}
            else ", and rules that give them one resource"
        )
        steps += (f"if they may go to one guest only: groups: together in the config{as_one}",)
    if not is_on_vfio(device.lead):
        steps += ("if the node is to keep it: a rule with withhold: true in the config",)
    return steps


def _left_behind(device: Device) -> Iterator[NodeFinding]:
    for left in device.left_behind:
        steps = () if left.reason.to_bind is None else (f"gpu-plugin bind {device.id}",)
        if left.is_of_card:
            yield warning(Check.WHOLE_CARD, left.wrong, left.reason.fix, *steps, of=device.id)
        else:
            yield note(Check.WHOLE_CARD, left.wrong, left.reason.fix, of=device.id)


def _no_reset(snapshot: Snapshot, device: Device) -> NodeFinding:
    if device.lead.bridges:
        where = f"it shares its bus with {', '.join(map(what, _strangers_on_the_bus(snapshot, device)))}"
    else:
        where = "it sits on the root complex, without a bus of its own"
    return warning(
        Check.RESET,
        f"cannot be reset between two guests: it has no reset of its own, and {where}, so that a guest finds what the "
        "last one left, and a card that hangs stays so",
        "reboot the node between two guests of it",
        "put the card into another slot",
        of=device.id,
    )


def _not_as_wanted(snapshot: Snapshot, device: Device) -> Iterator[NodeFinding]:
    """Yield settings that the config wants and functions on vfio lack: they are written when vfio gets those."""
    for function in filter(is_on_vfio, device.functions):
        card = card_of(snapshot.host, function.address)
        wanted = wanted_settings(snapshot.host, card, snapshot.config).get(function.address, NOTHING)
        details = snapshot.inspection.details.get(function.address)
        if details is None:
            continue
        if wanted.reset_methods is not None and details.reset_methods not in (None, wanted.reset_methods):
            has, wants = (
                " ".join(methods or ()) or "nothing" for methods in (details.reset_methods, wanted.reset_methods)
            )
            yield _not_yet(Check.RESET, device, function, "reset_method", has, wants)
        if wanted.d3cold_allowed is not None and details.d3cold_allowed not in (None, wanted.d3cold_allowed):
            has, wants = (f"{int(each or False)}" for each in (details.d3cold_allowed, wanted.d3cold_allowed))
            yield _not_yet(Check.POWER, device, function, "d3cold_allowed", has, wants)


def _not_yet(check: Check, device: Device, function: Function, name: str, has: str, wants: str) -> NodeFinding:
    text = "" if wants == "nothing" else f"{wants} "
    return warning(
        check,
        f"has {has} in {name} of {what(function)}, and the config wants {wants}: vfio had it before",
        f"gpu-plugin unbind {device.id}, then bind it with the config",
        f"or, where vfio has it from boot on: echo {text}> /sys/bus/pci/devices/{function.address}/{name}",
        of=device.id,
    )


def _errors(snapshot: Snapshot, device: Device) -> Iterator[NodeFinding]:
    """Yield the errors that the kernel has counted since it found each function: they may be old."""
    for function in device.functions:
        details = snapshot.inspection.details.get(function.address)
        if details is None or details.errors is None:
            continue
        lost = [
            f"{count} {kind}" for kind, count in details.errors._asdict().items() if count and kind != "correctable"
        ]
        if lost:
            yield note(
                Check.PCIE_ERRORS,
                f"has had {' and '.join(lost)} PCIe errors since the node found it (AER of {what(function)})",
                f"grep -r . /sys/bus/pci/devices/{function.address}/aer_dev_*; the daemon counts new ones",
                of=device.id,
            )


def _bars(snapshot: Snapshot, device: Device) -> Iterator[NodeFinding]:
    fix = ("turn on 'Above 4G Decoding' (64-bit MMIO) in the firmware", "or boot with pci=realloc")
    for function in device.functions:
        details = snapshot.inspection.details.get(function.address)
        if details is None or details.bars is None:
            continue
        for bar in details.bars:
            if not bar.assigned:
                yield error(
                    Check.BARS,
                    f"is not all there: the kernel found no place for BAR {bar.number} of {what(function)}, "
                    f"{size(bar.size)} of {64 if bar.memory_64 else 32}-bit addresses",
                    *fix,
                    of=device.id,
                )
        # The kernel may also forget a BAR for which it found no place (reset_resource in drivers/pci/setup-bus.c).
        if not details.bars and is_gpu(function):
            yield error(
                Check.BARS,
                f"is not all there: {what(function)} has no BAR, and nothing of its memory can be reached",
                *fix,
                of=device.id,
            )


def is_the_nodes(snapshot: Snapshot, device: Device) -> bool:
    """True if the device is the processor's own GPU, on its host's driver, and no rule asks for it."""
    return (
        device.mdev is None
        and not is_on_vfio(device.lead)
        and is_left_to_the_node(snapshot.host, device.functions, device.lead, snapshot.config)
    )


def is_for_parts(snapshot: Snapshot, device: Device) -> bool:
    """True if guests get the device's parts instead of the device, or if the device is a part that is not made yet."""
    made_yet = (NO_VGPU_YET, CUT_FOR_CLAIMS)
    return device.mdev is None and (device.withheld in made_yet or in_parts(snapshot.host, device.lead) is not None)


def has_no_reset(snapshot: Snapshot, details: Details) -> bool:
    """True if the function is known to have no reset of its own."""
    return not details.reset_methods and (
        details.reset_methods is not None or snapshot.inspection.platform.tells_resets
    )


def bus_is_reset_by_vfio(snapshot: Snapshot, device: Device) -> bool:
    """True if VFIO can reset the device by its bus: all functions on the bus belong to the device, and it is not the
    root bus (vfio_pci_dev_set_try_reset in drivers/vfio/pci/vfio_pci_core.c)."""
    return bool(device.lead.bridges) and not _strangers_on_the_bus(snapshot, device)


def _strangers_on_the_bus(snapshot: Snapshot, device: Device) -> tuple[Function, ...]:
    """Return the functions on a device's bus that do not belong to it, and would be reset with it."""
    at = device.lead.address
    return tuple(
        function
        for address, function in snapshot.host.functions.items()
        if (address.domain, address.bus) == (at.domain, at.bus) and function not in device.functions
    )
