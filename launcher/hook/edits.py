"""Elements that the hook writes into KubeVirt's domain, and removes from it again, in place.

Any other element stays as it is.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import Any
from uuid import UUID

from lxml import etree
from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.hook.kubevirt_domain import ON_ROOT_COMPLEX, alias_of, guest_address_of, number, source_of
from launcher.vm.cards.claims import Entry
from launcher.vm.cpu import placement
from launcher.vm.cpu.guest import Cell
from launcher.vm.guest import TOPOLOGY, Guest
from launcher.vm.guest_pci import xml as guest_pci
from launcher.vm.guest_pci.addresses import SCREEN, HostDev, Layout, PCIBridge, Seat
from launcher.vm.guest_pci.bars import Hole
from launcher.vm.xml import guest_address, pci_address
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


def devices_of(root: Element) -> Element:
    devices = root.find("devices")
    return etree.SubElement(root, "devices") if devices is None else devices


def taken_out(root: Element, named: Iterable[Element], functions: set[PCIAddress]) -> Mapping[str, Element]:
    """Remove the elements of an earlier answer: our controllers; and companions, which pass on one of these `functions`
    and are not the entries' own devices, `named`. Return our bridges by their alias."""
    devices, kept = devices_of(root), set(named)
    ours: dict[str, Element] = {}
    for controller in devices.findall("controller"):
        if (alias := alias_of(controller)).startswith(_OURS):
            devices.remove(controller)
            if controller.get("type") == "pci":
                ours[alias] = controller
    for hostdev in devices.findall("hostdev"):
        is_companion = alias_of(hostdev).startswith(_COMPANION)
        if is_companion or (hostdev not in kept and source_of(hostdev) in functions):
            devices.remove(hostdev)
    return ours


def take_out_empty(root: Element, moving: Iterable[Element]) -> None:
    """Remove the bridges that KubeVirt made for these devices alone, which move to other addresses."""
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
    """Remove a device's address in the guest, and return it."""
    at = guest_address_of(device)
    if at is not None:
        device.remove(_one(device, "address"))
    return at


def _addresses(root: Element) -> Iterator[PCIAddress]:
    for device in devices_of(root):
        if (address := guest_address_of(device)) is not None:
            yield address


def indexed(layout: Layout, root: Element, earlier: Mapping[str, Element]) -> Layout:
    """Return the layout with indices that nothing else in the domain has: those of our `earlier` bridges, or the lowest
    free ones. The guest does not see indices: its firmware counts by slots."""
    taken = {0, *(address.bus for address in _addresses(root)), *(bridge.index for bridge in other_bridges(root))}
    before = [earlier.get(f"{_OURS}{bridge.index}") for bridge in layout.bridges]
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
    """Return the PCI controllers of KubeVirt and libvirt except bus 0; one without an address is on bus 0."""
    bridges = []
    for controller in devices_of(root).iterfind("controller[@type='pci']"):
        index, model = number(controller.get("index", "")), controller.get("model", "")
        if index and not alias_of(controller).startswith(_OURS):
            at = guest_address_of(controller) or PCIAddress(0, 0, 0, 0)
            known: Any = model
            bridges.append(PCIBridge(model=known, index=index, address=at))
    return tuple(sorted(bridges, key=lambda bridge: bridge.index))


def write_cells(root: Element, cells: tuple[Cell, ...]) -> None:
    """Write the guest's NUMA cells in place of the domain's."""
    cpu = root.find("cpu")
    if cpu is None:
        cpu = etree.SubElement(root, "cpu")
    for parent, elements in ((cpu, placement.numa(cells)), (root, placement.numatune(cells))):
        for element in elements:
            _put(parent, element)


def write_hole(root: Element, guest: Guest, hole: Hole | None) -> None:
    """Write the hole for QEMU, the guest's CPU and EFI; do nothing if the default is large enough."""
    if hole is None:
        return
    devices = devices_of(root)
    (complex_,) = guest_pci.root_complex(hole)
    bus_0 = devices.find("controller[@type='pci'][@index='0']")
    if bus_0 is None:
        devices.insert(0, complex_)
    else:
        has = bus_0.find("pcihole64")
        if has is not None and (has.text or "").strip() == "0":
            raise UserError(
                "metadata.annotations",
                f"{_NO_HOLE} takes away the 64-bit hole, and the cards' BARs need {hole.window >> 30} GiB of it",
                "leave it out",
            )
        if has is None or _kib(has) < hole.size >> 10:
            _put(bus_0, _one(complex_, "pcihole64"))
    cpu = root.find("cpu")
    if cpu is not None and cpu.find("maxphysaddr") is None:
        cpu.extend(guest_pci.maxphysaddr(hole, cpu.get("mode")))
    for command_line in guest_pci.command_line(guest, hole):
        _join_command_line(root, command_line)


def _kib(size: Element) -> int:
    """Read a <pcihole64>, which KubeVirt and libvirt write in KiB."""
    kib = number((size.text or "").strip())
    if size.get("unit", "KiB") != "KiB" or kib is None:
        raise Refusal(
            "the domain's <pcihole64>", "is no number of KiB", "expected one, as KubeVirt and libvirt write it"
        )
    return kib


def _join_command_line(root: Element, wanted: Element) -> None:
    """Add these QEMU arguments to the domain's; replace an earlier window for EFI."""
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
    earlier: Mapping[str, Element],
) -> None:
    """Write our bridges, then every card onto its seat. `earlier` are our bridges in the previous answer."""
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
    for element in reversed(
        (*_bridges(layout, earlier), *_spare(root, layout, earlier), *_idle(devices, guest, layout))
    ):
        devices.insert(at, element)
    _write_screen(root, guest, layout)
    last = dict(named)
    for seat in seats:
        entry = seat.claim.entry
        for device in seat.hostdevs:
            if device.claim is not None:
                _seat(named[device.claim.entry], device)
            else:
                companion = _companion(named[entry], device)
                devices.insert(devices.index(last[entry]) + 1, companion)
                last[entry] = companion
    for hostdev in devices.iterfind("hostdev[@type='pci']"):
        # KubeVirt leaves the mode out. With any Plugin object in the cluster it converts the domain once more, behind
        # its hook sidecars, and refuses a <hostdev> without one (KubeVirt's issue 18861).
        hostdev.set("mode", hostdev.get("mode", "subsystem"))


def _bridges(layout: Layout, earlier: Mapping[str, Element]) -> Iterator[Element]:
    """Yield our bridges, each with its alias, and with the hotplug='off' that KubeVirt gives to ports in use."""
    for place, bridge in enumerate(layout.bridges, start=1):
        alias = f"{_OURS}{place}"
        element = guest_pci.bridge(bridge)
        element.insert(len(element) - 1, E.alias(name=alias))
        target, before = element.find("target"), earlier.get(alias)
        has = None if before is None else before.find("target")
        if target is not None and has is not None and (hotplug := has.get("hotplug")):
            target.set("hotplug", hotplug)
        yield element


def _spare(root: Element, layout: Layout, earlier: Mapping[str, Element]) -> Iterator[Element]:
    """Yield an empty port from the second define on, when each device has an address: on the first, libvirt would fill
    it.

    libvirt adds an empty port to a domain without bridges that needs ports, but not to one with ours.
    """
    others, libvirts = other_bridges(root), devices_of(root).find("controller[@model='pcie-root-port']/address")
    is_there = devices_of(root).find(f"controller/alias[@name='{_SPARE}']") is not None
    if not earlier or libvirts is None or is_there or any(bridge.model == EXPANDER for bridge in others):
        return
    index = 1 + max(bridge.index for bridge in (*others, *layout.bridges))
    yield E.controller(E.alias(name=_SPARE), type="pci", index=str(index), model="pcie-root-port")


def _idle(devices: Element, guest: Guest, layout: Layout) -> Iterator[Element]:
    """Yield the controllers on free seats, with indices that KubeVirt does not use."""
    others = devices.iterfind("controller[@type='virtio-serial']")
    first = max((number(each.get("index", "")) or 0 for each in others), default=0)
    for place, element in enumerate(guest_pci.placeholders(guest, layout), start=1):
        element.set("index", str(first + place))
        element.insert(len(element) - 1, E.alias(name=f"{_IDLE}{place}"))
        yield element


def _write_screen(root: Element, guest: Guest, layout: Layout) -> None:
    """Give the screen its address in our own domains, on bus 0 behind all seats: libvirt would place it on our first
    port's slot. KubeVirt does not keep the address."""
    screen = devices_of(root).find("video")
    model = None if screen is None else screen.find("model")
    if screen is None or model is None or model.get("type") in ("none", "ramfb") or guest.architecture != "amd64":
        return
    if not any(bridge.address.bus == 0 and bridge.model == "pcie-root-port" for bridge in layout.bridges):
        return
    if screen.find("address") is None and SCREEN not in set(_addresses(root)):
        screen.append(guest_address(SCREEN))


def _seat(hostdev: Element, device: HostDev) -> None:
    """Give an entry's own device its address, and the right source if KubeVirt took another card's function."""
    if not isinstance(device.source, UUID) and source_of(hostdev) != device.source:
        _put(_one(hostdev, "source"), pci_address(device.source))
    _put(hostdev, guest_address(device.address, multifunction=device.multifunction))


def _companion(named: Element, device: HostDev) -> Element:
    """Return the <hostdev> of a companion function, with the driver of the entry's own device, `named`."""
    assert isinstance(device.source, PCIAddress), "a mediated device has no companions"
    element = E.hostdev(mode="subsystem", type="pci", managed=named.get("managed", "no"))
    element.extend(deepcopy(driver) for driver in named.findall("driver") if driver.get("iommufd") is not None)
    element.append(E.source(pci_address(device.source)))
    # libvirt drops an alias that has anything but letters, digits, - and _.
    element.append(E.alias(name=_COMPANION + str(device.source).translate(str.maketrans(":.", "--"))))
    element.append(guest_address(device.address, multifunction=device.multifunction))
    return element


def write_no_rom(hostdev: Element) -> None:
    """Hide the option ROM of a card from the guest."""
    _put(hostdev, E.rom(bar="off"))


def refuse_one_address_twice(root: Element) -> None:
    """Raise Refusal if two devices have one address in the guest, for example one that the VM's manifest chose."""
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


def _put(parent: Element, element: Element) -> None:
    """Write an element in place of the first one of its name, or at the end."""
    old = parent.find(str(element.tag))
    if old is None:
        parent.append(element)
    else:
        element.tail = old.tail
        parent.replace(old, element)


def _one(element: Element, path: str) -> Element:
    child = element.find(path)
    assert child is not None, f"no {path} in {element.tag!r}"
    return child
