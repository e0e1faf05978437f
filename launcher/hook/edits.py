"""What is written into KubeVirt's domain, and taken out of it again: elements of libvirt's, in place.

Whatever is not named here stays as it is.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from uuid import UUID

from lxml import etree
from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.claims import Entry
from launcher.cpus.pinning import Cell
from launcher.elements import bridges, commandline, numa
from launcher.elements.address import guest_address, pci_address
from launcher.guest import TOPOLOGY, Guest
from launcher.guest_pci.addresses import SCREEN, HostDev, Layout, PCIBridge, Seat
from launcher.guest_pci.bars import Hole
from launcher.hook.annotations import ON_ROOT_COMPLEX
from launcher.hook.kubevirt_domain import alias_of, guest_address_of, number, source_of
from pci.address import PCIAddress
from program.errors import Refusal, UserError

#: A controller with such an alias is ours. KubeVirt and libvirt keep the aliases that begin with ua-.
_OURS = "ua-gpu-launcher-"
_IDLE = f"{_OURS}idle-"
_SPARE = "ua-spare-of-gpu-launcher"
#: KubeVirt reads the alias of every <hostdev> before each start, and panics where there is none.
_COMPANION = "ua-companion-"
EXPANDER = "pcie-expander-bus"
_OVMF_WINDOW = "name=opt/ovmf/X-PciMmio64Mb,"
_NO_HOLE = "kubevirt.io/disablePCIHole64"


@dataclass(frozen=True)
class TakenOut:
    """What of an earlier answer of ours was in the domain: its bridges by their alias."""

    bridges: Mapping[str, Element]


def devices_of(root: Element) -> Element:
    devices = root.find("devices")
    return etree.SubElement(root, "devices") if devices is None else devices


def taken_out(root: Element, named: Iterable[Element], functions: set[PCIAddress]) -> TakenOut:
    """Take out our controllers, and what passes a function on that comes with a card. `named` are entries' own."""
    devices, kept = devices_of(root), set(named)
    ours: dict[str, Element] = {}
    for controller in devices.findall("controller"):
        if (alias := alias_of(controller)).startswith(_OURS):
            devices.remove(controller)
            if controller.get("type") == "pci":
                ours[alias] = controller
    for hostdev in devices.findall("hostdev"):
        if _is_companion(hostdev) or (hostdev not in kept and source_of(hostdev) in functions):
            devices.remove(hostdev)
    return TakenOut(ours)


def take_out_empty(root: Element, moving: Iterable[Element]) -> None:
    """Take out the bridges that KubeVirt has made for these devices alone, which go elsewhere."""
    devices = devices_of(root)
    left = [address.bus for device in moving if (address := leave(device)) is not None]
    on = Counter(address.bus for address in _addresses(root))
    while left:
        bus = left.pop()
        bridge = devices.find(f"controller[@type='pci'][@index='{bus}']")
        if bus == 0 or bridge is None or on[bus]:
            continue
        if (address := guest_address_of(bridge)) is not None:
            on[address.bus] -= 1
            left.append(address.bus)
        devices.remove(bridge)


def leave(device: Element) -> PCIAddress | None:
    """Take the guest's address away from a device, and return it."""
    at = guest_address_of(device)
    if at is not None:
        device.remove(_one(device, "address"))
    return at


def _addresses(root: Element) -> Iterator[PCIAddress]:
    for device in devices_of(root):
        if (address := guest_address_of(device)) is not None:
            yield address


def indexed(layout: Layout, root: Element, parts: TakenOut) -> Layout:
    """The layout with indices that nothing else in the domain has: those of the earlier answer, or else the lowest.

    The guest does not see them: its firmware counts by slots.
    """
    taken = {0, *(address.bus for address in _addresses(root)), *(bridge.index for bridge in other_bridges(root))}
    before = [parts.bridges.get(f"{_OURS}{bridge.index}") for bridge in layout.bridges]
    indices = [index for element in before if element is not None and (index := number(element.get("index", "")))]
    if len(indices) < len(layout.bridges) or taken & set(indices):
        free = (index for index in range(1, 1 << 16) if index not in taken)
        indices = [next(free) for _ in layout.bridges]
    bus = {0: 0, **{bridge.index: index for bridge, index in zip(layout.bridges, indices, strict=True)}}

    def moved(address: PCIAddress) -> PCIAddress:
        return replace(address, bus=bus[address.bus])

    return replace(
        layout,
        bridges=tuple(
            replace(
                bridge,
                index=bus[bridge.index],
                address=moved(bridge.address),
                chassis=None if bridge.chassis is None else bus[bridge.index],
            )
            for bridge in layout.bridges
        ),
        seats=tuple(
            replace(
                seat,
                bus=bus[seat.bus],
                hostdevs=tuple(replace(each, address=moved(each.address)) for each in seat.hostdevs),
            )
            for seat in layout.seats
        ),
    )


def other_bridges(root: Element) -> tuple[PCIBridge, ...]:
    """KubeVirt's and libvirt's PCI controllers, but for bus 0. One without an address is on bus 0."""
    found = []
    for controller in devices_of(root).iterfind("controller[@type='pci']"):
        index, model = number(controller.get("index", "")), controller.get("model", "")
        if index and not alias_of(controller).startswith(_OURS):
            at = guest_address_of(controller) or PCIAddress(0, 0, 0, 0)
            known: Any = model
            found.append(PCIBridge(model=known, index=index, address=at))
    return tuple(sorted(found, key=lambda bridge: bridge.index))


def write_cells(root: Element, cells: tuple[Cell, ...]) -> None:
    """Write the guest's NUMA cells in place of those that there are."""
    cpu = root.find("cpu")
    if cpu is None:
        cpu = etree.SubElement(root, "cpu")
    for parent, tag, elements in ((cpu, "numa", numa.numa(cells)), (root, "numatune", numa.numatune(cells))):
        old = parent.find(tag)
        for element in elements:
            if old is None:
                parent.append(element)
            else:
                _replace(old, element)


def write_hole(root: Element, guest: Guest, hole: Hole | None) -> None:
    """Write what QEMU, the guest's CPU and EFI have to know of a large hole; nothing where none is needed."""
    if hole is None:
        return
    devices = devices_of(root)
    (complex_,) = bridges.root_complex(hole)
    bus_0 = devices.find("controller[@type='pci'][@index='0']")
    if bus_0 is None:
        devices.insert(0, complex_)
    else:
        wanted, has = _one(complex_, "pcihole64"), bus_0.find("pcihole64")
        if has is None:
            bus_0.append(wanted)
        elif (has.text or "").strip() == "0":
            raise UserError(
                "metadata.annotations",
                f"{_NO_HOLE} takes away the 64-bit hole, and the cards' BARs need {hole.window >> 30} GiB of it",
                "leave it out",
            )
        elif _kib(has) < hole.size >> 10:
            _replace(has, wanted)
    cpu = root.find("cpu")
    if cpu is not None and cpu.find("maxphysaddr") is None:
        cpu.extend(bridges.maxphysaddr(hole, cpu.get("mode")))
    for command_line in commandline.command_line(guest, hole):
        _join_command_line(root, command_line)


def _kib(size: Element) -> int:
    """A <pcihole64>, which KubeVirt and libvirt write in KiB."""
    kib = number((size.text or "").strip())
    if size.get("unit", "KiB") != "KiB" or kib is None:
        raise Refusal(
            "the domain's <pcihole64>", "is no number of KiB", "expected one, as KubeVirt and libvirt write it"
        )
    return kib


def _join_command_line(root: Element, wanted: Element) -> None:
    """Add these arguments to the domain's, in place of an earlier window for EFI."""
    has = root.find(str(wanted.tag))
    if has is None:
        root.append(wanted)
        return
    arguments = list(has.iterfind(str(wanted[0].tag)))
    for flag, argument in pairwise(arguments):
        if flag.get("value") == "-fw_cfg" and argument.get("value", "").startswith(_OVMF_WINDOW):
            argument.set("value", wanted[-1].get("value", ""))
            return
    # Arguments come first, and QEMU's environment may be behind them.
    at = has.index(arguments[-1]) + 1 if arguments else 0
    for place, argument in enumerate(list(wanted)):
        has.insert(at + place, argument)


def write_devices(
    root: Element,
    guest: Guest,
    layout: Layout,
    seats: tuple[Seat, ...],
    named: Mapping[Entry, Element],
    parts: TakenOut,
) -> None:
    """Write our bridges, then every card onto its seat."""
    devices = devices_of(root)
    if any(bridge.model == EXPANDER for bridge in layout.bridges) and any(
        bridge.model == EXPANDER for bridge in other_bridges(root)
    ):
        raise UserError(
            "metadata.annotations",
            f"{TOPOLOGY}: KubeVirt has placed other devices by NUMA node, on bus numbers that the cards' need",
            "leave it out to keep KubeVirt's placement, or take KubeVirt's feature gate PCINUMAAwareTopology away",
        )
    at = min(devices.index(element) for element in named.values())
    for element in reversed((*_bridges(layout, parts), *_spare(root, layout, parts), *_idle(devices, guest, layout))):
        devices.insert(at, element)
    _write_screen(root, guest, layout)
    for seat in seats:
        behind = named[seat.claim.entry]
        for device in seat.hostdevs:
            if device.claim is not None:
                _seat(named[device.claim.entry], device)
            else:
                companion = _companion(named[seat.claim.entry], device)
                devices.insert(_behind_companions(devices, behind), companion)
    _write_modes(devices)


def _bridges(layout: Layout, parts: TakenOut) -> Iterator[Element]:
    """Each with its alias, and with the hotplug='off' that KubeVirt has given to a port with a device behind it."""
    for place, bridge in enumerate(layout.bridges, start=1):
        alias = f"{_OURS}{place}"
        element = bridges.bridge(bridge)
        element.insert(len(element) - 1, E.alias(name=alias))
        target, before = element.find("target"), parts.bridges.get(alias)
        has = None if before is None else before.find("target")
        if target is not None and has is not None and (hotplug := has.get("hotplug")):
            target.set("hotplug", hotplug)
        yield element


def _spare(root: Element, layout: Layout, parts: TakenOut) -> Iterator[Element]:
    """One empty port, from the second define on, when all else has its place: at the first, libvirt would fill it.

    libvirt itself adds one where a domain has no bridges yet and needs some. With ours in it, it does not.
    """
    others, libvirts = other_bridges(root), devices_of(root).find("controller[@model='pcie-root-port']/address")
    is_there = devices_of(root).find(f"controller/alias[@name='{_SPARE}']") is not None
    if not parts.bridges or libvirts is None or is_there or any(bridge.model == EXPANDER for bridge in others):
        return
    index = 1 + max(bridge.index for bridge in (*others, *layout.bridges))
    yield E.controller(E.alias(name=_SPARE), type="pci", index=str(index), model="pcie-root-port")


def _idle(devices: Element, guest: Guest, layout: Layout) -> Iterator[Element]:
    """The controllers on free seats, with indices that KubeVirt's have not."""
    others = devices.iterfind("controller[@type='virtio-serial']")
    first = max((number(each.get("index", "")) or 0 for each in others), default=0)
    for place, element in enumerate(bridges.placeholders(guest, layout), start=1):
        element.set("index", str(first + place))
        element.insert(len(element) - 1, E.alias(name=f"{_IDLE}{place}"))
        yield element


def _write_screen(root: Element, guest: Guest, layout: Layout) -> None:
    """Place the screen that libvirt would place on our first port's slot: behind all seats, and in front of a bridge,
    as ours has it. KubeVirt keeps no address of it."""
    screen = devices_of(root).find("video")
    model = None if screen is None else screen.find("model")
    if screen is None or model is None or model.get("type") in ("none", "ramfb") or guest.architecture != "amd64":
        return
    if not any(bridge.address.bus == 0 and bridge.model == "pcie-root-port" for bridge in layout.bridges):
        return
    if screen.find("address") is None and SCREEN not in set(_addresses(root)):
        screen.append(guest_address(SCREEN))


def _seat(hostdev: Element, device: HostDev) -> None:
    """Give an entry's own device its address, and its source where KubeVirt took another card's."""
    if not isinstance(device.source, UUID) and source_of(hostdev) != device.source:
        _replace(_one(hostdev, "source/address"), pci_address(device.source))
    address = guest_address(device.address, multifunction=device.multifunction)
    has = hostdev.find("address")
    if has is None:
        hostdev.append(address)
    else:
        _replace(has, address)


def _write_modes(devices: Element) -> None:
    """Write into every PCI <hostdev> the mode that libvirt takes a missing one for.

    KubeVirt leaves it out. With any Plugin object in the cluster it converts the domain once more, behind its hook
    sidecars, and refuses a <hostdev> without a mode (KubeVirt's issue 18861).
    """
    for hostdev in devices.iterfind("hostdev[@type='pci']"):
        if hostdev.get("mode") is None:
            hostdev.set("mode", "subsystem")


def _companion(named: Element, device: HostDev) -> Element:
    """A function that comes with an entry's own, by the same driver."""
    assert isinstance(device.source, PCIAddress), "a mediated device has no companions"
    element = E.hostdev(mode="subsystem", type="pci", managed=named.get("managed", "no"))
    element.extend(deepcopy(driver) for driver in named.findall("driver") if driver.get("iommufd") is not None)
    element.append(E.source(pci_address(device.source)))
    # libvirt drops an alias that has anything but letters, digits, - and _.
    element.append(E.alias(name=_COMPANION + str(device.source).translate(str.maketrans(":.", "--"))))
    element.append(guest_address(device.address, multifunction=device.multifunction))
    return element


def _is_companion(device: Element) -> bool:
    return alias_of(device).startswith(_COMPANION)


def _behind_companions(devices: Element, named: Element) -> int:
    """Where the next companion goes: behind an entry's device, and behind those that it has."""
    at = devices.index(named) + 1
    while at < len(devices) and _is_companion(devices[at]):
        at += 1
    return at


def write_no_rom(hostdev: Element) -> None:
    """Have the guest find no option ROM on a card."""
    has = hostdev.find("rom")
    if has is None:
        hostdev.append(E.rom(bar="off"))
    else:
        _replace(has, E.rom(bar="off"))


def refuse_one_address_twice(root: Element) -> None:
    """Refusal where two devices are on one address of the guest's, as with one that the VM's manifest has chosen."""
    twice = [address for address, count in Counter(_addresses(root)).items() if count > 1]
    if not twice:
        return
    on = [device for device in devices_of(root) if guest_address_of(device) == twice[0]]
    names = " and ".join(f"<{device.tag!s}> {alias_of(device)}".rstrip() for device in on)
    raise Refusal(
        "the domain",
        f"has {names} both at {twice[0]} of the guest's",
        f"expected no pciAddress from 0000:00:01.0 to 0000:00:06.7, which are the seats', and no {ON_ROOT_COMPLEX} "
        "beside them",
    )


def _replace(old: Element, new: Element) -> None:
    new.tail = old.tail
    parent = old.getparent()
    assert parent is not None, "it is in a domain"
    parent.replace(old, new)


def _one(element: Element, path: str) -> Element:
    found = element.find(path)
    assert found is not None, f"no {path} in {element.tag!r}"
    return found
