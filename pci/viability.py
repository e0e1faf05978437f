"""Whether a guest could start with a device: the kernel's conditions on its IOMMU group and drivers, in words.

The plugin asks before it offers a device, the launcher before it starts a guest with one. The plugin withholds a device
that is not meant for guests (on another driver, without an IOMMU, in one group with another card): the kubelet never
hears of it. A device that VFIO has and that is broken (a companion on another driver) is unhealthy: the kubelet counts
it, and hands it out to no pod.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from pci.address import PCIAddress
from pci.cards import Card, card_of, groups_of, part_of, travels_alone
from pci.functions import is_bmc_screen, is_gpu, is_on_vfio, is_vfio_driver, what
from pci.host import Function, Host, OtherMember
from pci.vendors import AMD_PROCESSORS

#: Drivers that hold a function without touching it: the kernel counts them as none (drivers/vfio, "viable").
PLACEHOLDERS = ("pci-stub",)

#: The last domain that firmware can give; Linux puts what is behind Intel's VMD into those from 0x10000 on
#: (drivers/pci/controller/vmd.c).
_LAST_DOMAIN = 0xFFFF

_DISPLAY = 0x03  # the base class

_ANOTHER_SLOT = "put the card into another slot, whose root port or switch has ACS"


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Why a guest cannot have a device, in words that go after "it", and what to do about that. `to_bind` is the
    function whose card has to be bound to vfio, if that is the hindrance."""

    wrong: str
    fix: str
    to_bind: PCIAddress | None = None

    def __str__(self) -> str:
        return f"{self.wrong}; {self.fix}" if self.fix else self.wrong


#: The fix for a missing IOMMU depends on processor, firmware and kernel parameters: the doctor looks at them.
NO_IOMMU = Hindrance("is in no IOMMU group: no IOMMU is on", "gpu-plugin doctor says what turns it on here")

#: For a function that the IOMMU leaves out, as Intel's does the processor's own GPU with intel_iommu=igfx_off.
PAST_THE_IOMMU = Hindrance(
    "is in no IOMMU group, though others are: no IOMMU is between it and the memory",
    "put it into another slot, or install a newer firmware, and for the processor's own GPU take igfx_off out of "
    "intel_iommu=",
)


def no_iommu(host: Host) -> Hindrance:
    """Return why a function without an IOMMU group has none."""
    return PAST_THE_IOMMU if any(group not in host.noiommu for group in host.groups) else NO_IOMMU


#: For a function with the node's own screen.
BOOT_VGA = Hindrance(
    "is the boot VGA, the node's own screen",
    "let the firmware put that on another card (its setup calls it primary display)",
)


def is_boot_vga(host: Host, lead: Function) -> Hindrance:
    """Return the hindrance of a boot VGA. If the machine has another screen, the firmware can use that one; the only
    one goes to guests if vfio has it before any other driver makes a console of it."""
    others = (other for other in host.functions.values() if other.pci_class >> 16 == _DISPLAY and not other.is_virtual)
    card = card_of(host, lead.address)
    if is_bmc_screen(lead):
        return Hindrance(BOOT_VGA.wrong, "leave it to the node, which is seen by it from afar")
    if any(other not in card for other in others):
        return BOOT_VGA
    ids = ",".join(dict.fromkeys(function.pci_id for function in card))
    fix = (
        f"boot with vfio-pci.ids={ids}, and with vfio-pci in the initramfs: it is the only screen, and vfio has to "
        "have it before a display is up"
    )
    return Hindrance(BOOT_VGA.wrong, fix)


#: The fix for a thing about which the kernel does not answer.
END_THE_WAIT = (
    "a driver that is to let go of it may be waiting for a guest: end that one, and look into the kernel's log"
)


def no_answer(name: str) -> Hindrance:
    """Return the hindrance of a silent function or mediated device of that name."""
    return Hindrance(f"is unknown, the kernel did not answer for {name}", END_THE_WAIT)


#: For a virtual function of NVIDIA's driver that is no vGPU.
NO_VGPU_YET = Hindrance("is a virtual function, and no vGPU yet", "gpu-plugin vgpus makes one, by the config")


#: The fix for a card in parts: guests keep their parts.
GIVE_PARTS = "give guests those: gpu-plugin inventory lists them"


def in_parts(host: Host, function: Function, *, made: int = 0) -> Hindrance | None:
    """Return the hindrance that guests get a function's parts, not the whole: its virtual functions, at least `made` of
    them, or its driver's mediated devices. None if it has no parts, or vfio has the whole."""
    if is_on_vfio(function):
        return None
    number = max(made, sum(other.physical_function == function.address for other in host.functions.values()))
    mdevs = sum(mdev.parent == function.address for mdev in host.mdevs)
    kinds = {"virtual function": number, "mediated device": mdevs}
    parts = " and ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in kinds.items() if count)
    if not parts:
        return None
    return Hindrance(f"is in parts: its {parts} {'are' if number + mdevs > 1 else 'is'} what guests get", GIVE_PARTS)


def keeps_its_group(member: OtherMember) -> bool:
    """Whether this member, which is no PCI function, keeps its group from being opened: it is on a driver other than
    VFIO's (vfio-platform, vfio-amba, vfio-fsl-mc). All buses count (iommu_device_use_default_domain)."""
    return not member.is_readable or (member.driver is not None and not member.driver.startswith("vfio"))


def not_for_guests(host: Host, lead: Function) -> Hindrance | None:
    """Return why the kernel lets no guest have this function as it is now; None if it does."""
    if lead.is_bridge:
        return Hindrance("is a PCI bridge, which no guest can be given", "offer the devices behind it")
    if lead.boot_vga and not is_on_vfio(lead):
        screen = is_boot_vga(host, lead)
        return Hindrance(f"{screen.wrong}, and bound to {lead.driver or 'no driver'}", screen.fix)
    if lead.iommu_group is None:
        return no_iommu(host)
    if not is_on_vfio(lead):
        return Hindrance(f"is bound to {lead.driver or 'no driver'}", "bind the whole card to vfio-pci", lead.address)
    if lead.iommu_group in host.noiommu:
        return Hindrance(
            f"is in group {lead.iommu_group} of vfio's no-IOMMU mode, in which no guest can be given a device",
            "turn the IOMMU on",
        )
    if lead.physical_function is not None and lead.vgpu_type is None:
        physical = host.functions.get(lead.physical_function)
        if physical is not None and is_vfio_driver(physical.driver):
            # The kernel then asks for a token that no domain of ours has (vfio_pci_validate_vf_token).
            return Hindrance(
                f"is a virtual function of {physical.address}, which is on {physical.driver} itself",
                f"bind {physical.address} to its own driver",
            )
    return None


def strangers(host: Host, functions: Iterable[Function], taken: Container[PCIAddress] = ()) -> tuple[Function, ...]:
    """Return the PCI functions that keep the IOMMU groups of these functions from guests: they are on a driver that is
    neither VFIO's nor a placeholder, and are not `taken` along. A bridge keeps no group."""
    functions = tuple(functions)
    members = (host.functions.get(address) for group in groups_of(functions) for address in host.groups[group])
    return tuple(
        member
        for member in members
        if member is not None
        and member not in functions
        and member.address not in taken
        and not member.is_bridge
        and not (member.driver is None or member.driver in PLACEHOLDERS or is_on_vfio(member))
    )


def shared_with(host: Host, functions: Iterable[Function], taken: Container[PCIAddress] = ()) -> Hindrance | None:
    """Return who else keeps an IOMMU group of these functions from guests, each by name, and the fix; None if nobody
    does. A stranger that is a graphics card can be given to the guest too; others are the node's own."""
    functions = tuple(functions)
    on_pci = strangers(host, functions, taken)
    shared = (
        _shared_group(host, group, [member for member in on_pci if member.address in host.groups[group]])
        for group in groups_of(functions)
    )
    return next((hindrance for hindrance in shared if hindrance is not None), None)


def _shared_group(host: Host, group: int, on_pci: Sequence[Function]) -> Hindrance | None:
    """Return how these strangers, and members that are not on PCI, hinder a group; None if there are none."""
    others = tuple(filter(keeps_its_group, host.others.get(group, ())))
    held = [
        *(f"{what(member)} is bound to {member.driver}" for member in on_pci),
        *(
            f"{other.name} (not on PCI) is bound to {other.driver}"
            if other.is_readable
            else f"the driver of {other.name} cannot be read"
            for other in others
        ),
    ]
    if not held:
        return None
    fix, to_bind = "free it of its driver" if len(held) == 1 else "free them of their drivers", None
    if on_pci and all(_is_of_a_spare_card(host, member) for member in on_pci):
        fix, to_bind = f"{_ANOTHER_SLOT}, or bind the other card to vfio-pci too", on_pci[0].address
    elif on_pci:
        its = "it is" if len(on_pci) == 1 else "they are"
        vmd = any(member.driver == "vmd" or member.address.domain > _LAST_DOMAIN for member in on_pci)
        fix = f"{its} the node's own: {_ANOTHER_SLOT}{', or turn VMD off in the firmware' if vmd else ''}"
    elif not all(other.is_readable for other in others):
        fix = "the kernel's log may say why"
    return Hindrance(f"is in group {group}, which is not viable: {', '.join(held)}", fix, to_bind)


def _is_of_a_spare_card(host: Host, member: Function) -> bool:
    card = card_of(host, member.address)
    return any(map(is_gpu, card)) and not any(function.boot_vga for function in card)


def not_viable(host: Host, functions: tuple[Function, ...]) -> Hindrance | None:
    """Return why the guest would not get all of these functions, by name; None if it gets all.

    The groups' other members only need to be free of other drivers.
    """
    for group in groups_of(functions):
        for address in host.groups[group]:
            if (member := host.functions.get(address)) is not None and member.is_bridge:
                continue
            if host.silent and str(address) in host.silent:
                return no_answer(str(address))
            if member is None:
                wrong = f"is in group {group}, which is not viable: {address} cannot be read"
                return Hindrance(wrong, "the kernel's log may say what became of it")
    if (shared := shared_with(host, functions)) is not None:
        return shared
    for member in functions:
        if is_on_vfio(member):
            continue
        if member.driver is None or member.driver in PLACEHOLDERS:
            # The kernel would let the group be opened; but the guest gets the card whole, this function included.
            bound = f"{what(member)} is bound to {member.driver or 'no driver'}"
            return Hindrance(f"is not whole: {bound}", "bind it to vfio-pci", member.address)
        wrong = f"is in group {member.iommu_group}, which is not viable: {what(member)} is bound to {member.driver}"
        return Hindrance(wrong, "bind it to vfio-pci", member.address)
    return None


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """Functions that a guest does not get with a card, and why, in words. `is_of_card`: they belong to the card; else
    they only share its slot."""

    functions: Card
    reason: Hindrance
    is_of_card: bool

    @property
    def wrong(self) -> str:
        """What the card does, in words that go after its name."""
        return f"leaves {', '.join(map(what, self.functions))} behind: {self.reason.wrong}"

    def __str__(self) -> str:
        return f"{self.wrong}; {self.reason.fix}"


def left_behind(host: Host, card: Card) -> tuple[LeftBehind, ...]:
    """Return the functions that stay on the node when a guest gets this GPU's card: parts in IOMMU groups of their own
    that a guest cannot have, and functions of its slot that are not the card's. A card that is not on vfio yet has no
    such parts: it is bound as a whole."""
    first = part_of(host, card[0].address)
    if travels_alone(card[0]) or not any(map(is_gpu, first)):
        return ()
    is_bound = any(map(is_on_vfio, first))
    parts = dict.fromkeys(part_of(host, function.address) for function in card if function not in first)
    left = [
        LeftBehind(part, reason, is_of_card=True)
        for part in parts
        if is_bound and (reason := _keeps_part(host, part, card)) is not None
    ]
    others: dict[str, list[Function]] = {}
    for function in host.slot(card[0].address):
        whose = card_of(host, function.address)
        if function not in card and not travels_alone(function) and not any(map(is_gpu, whose)):
            others.setdefault(_whose(card, whose), []).append(function)
    fix = "leave them to the node"
    left += [LeftBehind(tuple(its), Hindrance(wrong, fix), is_of_card=False) for wrong, its in others.items()]
    return tuple(left)


def _keeps_part(host: Host, part: Card, card: Card) -> Hindrance | None:
    """Return why a guest does not get this part of the card, though it gets the card; None if it does."""
    is_in_group = part[0].iommu_group == card[0].iommu_group
    for function in part:
        if is_in_group and not (function.driver is None or function.driver in PLACEHOLDERS):
            continue  # on vfio, or the whole group cannot be given
        if (reason := not_for_guests(host, function)) is not None:
            that = "that" if len(part) == 1 else str(function.address)
            return Hindrance(f"{that} {reason.wrong}", reason.fix, reason.to_bind)
    if is_in_group:
        return None
    if (reason := not_viable(host, part)) is not None:
        return Hindrance(f"that {reason.wrong}", reason.fix, reason.to_bind)
    members = (host.functions[address] for group in groups_of(part) for address in host.groups[group])
    others = [member for member in members if member not in card and not member.is_bridge]
    if not others:
        return None
    # Another guest that gets one of these would find the group in use.
    return Hindrance(f"that shares group {part[0].iommu_group} with {', '.join(map(what, others))}", _ANOTHER_SLOT)


def _whose(card: Card, others: Card) -> str:
    """Return why these functions, which share the slot of a card's GPU, are not the card's."""
    vendors = {function.vendor_id for function in others} - {card[0].vendor_id}
    whose = "the processor's" if vendors == {AMD_PROCESSORS} else "not the card's"
    named = " and ".join(f"{vendor:04x}" for vendor in sorted(vendors))
    return f"only on its slot, and {whose} (vendor {named}, the GPU's is {card[0].vendor_id:04x})"
