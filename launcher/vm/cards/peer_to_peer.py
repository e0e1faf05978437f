"""QEMU's properties of passed-through cards that libvirt has no element for, by annotation: peer-to-peer and BARs.

`x-nv-gpudirect-clique` (hw/vfio/pci-quirks.c) tells NVIDIA's driver in the guest that cards of one clique may write to
each other's memory. Nothing checks that: the annotation vouches for the path. `x-no-mmap` has QEMU handle each access
to a BAR, so that no BAR is mapped to the guest or to the IOMMU.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from launcher.vm.cards.guest import GuestCard
from launcher.vm.guest import NO_MMAP, P2P
from pci.address import PCIAddress
from pci.host import Function, Host
from pci.nvml_names import nvml_name
from pci.vendors import NVIDIA
from program.errors import Refusal, UserError
from program.finding import Finding
from program.problem import Problem, Severity

#: Turing, Ampere, Hopper and Lovelace for data centers, of which cloud-hypervisor/cloud-hypervisor#6235 says that the
#: driver takes it, by the devices of pci.ids: T4, A100, A800, A30, A2 and A16, A40, A10, H100, H800, H200, H20, L40,
#: L40S, L20, L4, L2. Of Blackwell nobody has said it yet.
TAKES_CLIQUES = frozenset(
    {
        0x1EB4, 0x1EB8, 0x20B0, 0x20B1, 0x20B2, 0x20B3, 0x20B5, 0x20B7, 0x20B8, 0x20B9, 0x20F1, 0x20F3,
        0x20F5, 0x2235, 0x2236, 0x2237, 0x25B6, 0x2321, 0x2322, 0x2324, 0x2329, 0x2330, 0x2331, 0x2335,
        0x2336, 0x2339, 0x233B, 0x26B5, 0x26B9, 0x26BA, 0x27B6, 0x27B8,
    }
)  # fmt: skip

_CLIQUE = "x-nv-gpudirect-clique"
_MOST_CLIQUES = 16  # the property has the numbers 0 to 15


@dataclass(frozen=True, slots=True)
class Property:
    """A property of QEMU's: its name, libvirt's type of it (`unsigned`, `bool`), and the value."""

    name: str
    type: str
    value: str


NO_PROPERTIES: Mapping[str, tuple[Property, ...]] = MappingProxyType({})


def properties_of(
    cards: tuple[GuestCard, ...], host: Host | None, *, in_cliques: bool, maps_bars: bool
) -> Mapping[str, tuple[Property, ...]]:
    """Return the properties by the device's alias. UserError for cards that cannot have what the annotation asks for,
    Refusal if their place is unknown."""
    if in_cliques and not maps_bars:
        raise UserError(
            "metadata.annotations",
            f"{P2P} needs BARs that are mapped, and {NO_MMAP} says that none is",
            "leave one of them out",
        )
    claimed = {card.claim.alias: card.claim.device for card in cards if isinstance(card.claim.device, PCIAddress)}
    if not maps_bars:
        return {alias: (Property("x-no-mmap", "bool", "true"),) for alias in claimed}
    if not in_cliques:
        return {}
    if host is None:
        raise Refusal(P2P, "it is not known which cards are behind one switch", "name the node's sysfs with --sysfs")
    gpus = {alias: _gpu(host, address) for alias, address in claimed.items()}
    numbers: dict[tuple[object, ...], int] = {}
    properties = {}
    for alias, gpu in gpus.items():
        if gpu is None:
            continue
        number = numbers.setdefault(_path(gpu), len(numbers))
        if number == _MOST_CLIQUES:
            wrong = f"{P2P}: the cards are below more than {_MOST_CLIQUES} switches and root complexes"
            raise UserError("metadata.annotations", wrong, "give the VM cards that are closer to each other")
        properties[alias] = (Property(_CLIQUE, "unsigned", str(number)),)
    if len(properties) < 2:
        wrong = f"{P2P} is for several GPUs of NVIDIA's, and this VM has {len(properties)} with an entry of its own"
        raise UserError("metadata.annotations", wrong, "leave it out, or name each GPU in an entry")
    return properties


def cliques_in(properties: Mapping[str, tuple[Property, ...]]) -> Mapping[str, int]:
    """Return the number of each GPU's clique, by its alias."""
    return {alias: int(each.value) for alias, its in properties.items() for each in its if each.name == _CLIQUE}


def without_peer(cards: tuple[GuestCard, ...], cliques: Mapping[str, int]) -> Iterator[Finding]:
    """Yield a warning that names the GPUs that are alone in their clique."""
    sizes = Counter(cliques.values())
    alone = [
        str(entry)
        for alias, entry in {card.claim.alias: card.claim.entry for card in cards}.items()
        if alias in cliques and sizes[cliques[alias]] == 1
    ]
    if alone:
        have = "has" if len(alone) == 1 else "have"
        yield Finding(
            Severity.WARNING,
            Problem(
                P2P,
                f"{' and '.join(alone)} {have} no peer: no other GPU of the VM is behind the same switch, or without a "
                "switch on the same root complex",
                "expected cards behind one switch, which gpu-launcher.dev/together: switch chooses, or leave it out",
            ),
        )


def _gpu(host: Host, address: PCIAddress) -> Function | None:
    """Return the function if it is a GPU of NVIDIA's; UserError for one whose driver does not take a clique."""
    function = host.functions.get(address)
    # QEMU takes the property for display controllers alone.
    if function is None or function.vendor_id != NVIDIA or function.pci_class >> 16 != 3:
        return None
    if function.is_virtual:
        wrong = f"{P2P}: {address} is a virtual function, which is no GPU by itself"
        raise UserError("metadata.annotations", wrong, "give the VM whole cards, or leave it out")
    if function.device_id not in TAKES_CLIQUES:
        name = nvml_name(function.pci_id, function.subsystem_id) or function.pci_id
        wrong = (
            f"{P2P}: {address} is {name}, none of the data center models of which it is known to work: on a GeForce "
            "writes to another card go to a private copy, and NCCL hangs or counts with wrong data (nccl 2335)"
        )
        raise UserError("metadata.annotations", wrong, "leave it out: NCCL then goes through the host's memory")
    return function


def _path(gpu: Function) -> tuple[object, ...]:
    """Return what the cards of a clique share: the switch below their root port, or without a switch the root complex.
    Not every root port passes on what one card sends to another (cloud-hypervisor#6305)."""
    return gpu.root, gpu.switch
