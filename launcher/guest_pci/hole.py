"""The 64-bit hole that the domain asks for, and what speaks against the cards' BARs being in it."""

from launcher.facts import Facts
from launcher.guest_pci.addresses import Layout
from launcher.guest_pci.bars import DEFAULT_BITS, GIB, MOST_OF_OVMF, Hole, above_4_gib, needed, seats_with_io
from launcher.manifest.spec import VirtualMachineInstance

#: VIRT_HIGH_PCIE_MMIO in QEMU's hw/arm/virt.c: the window of an arm64 machine, which nothing here sizes.
_ARM64_WINDOW = 512 * GIB
#: Seen with one card a seat and nothing else with I/O ports behind a bridge (docs/guest-pci.md). With one more, OVMF
#: 2022.11 gives no device any address, and SeaBIOS 1.16.2 stops.
_MOST_WITH_IO = {"efi": ("OVMF", 9), "bios": ("SeaBIOS", 14)}


def hole(vmi: VirtualMachineInstance, layout: Layout, facts: Facts) -> tuple[Hole | None, tuple[str, ...]]:
    """Return the hole that the domain asks for, and why the guest may not get all BARs.

    None where none is needed, and where none that is needed can be had; empty where nothing speaks against it.
    """
    memory, is_efi = vmi.spec.domain.guest_memory, vmi.spec.efi is not None
    found = needed(layout, facts.bars, memory=memory, is_efi=is_efi)
    warnings = (*_of_io(vmi, layout, facts), *_of_memory(vmi, found, facts))
    if found is None or vmi.spec.architecture != "amd64" or _beyond_emulation(found, facts):
        return None, warnings
    return found, warnings


def _of_io(vmi: VirtualMachineInstance, layout: Layout, facts: Facts) -> tuple[str, ...]:
    firmware, most = _MOST_WITH_IO["efi" if vmi.spec.efi is not None else "bios"]
    cards = seats_with_io(layout, facts.bars)
    if cards <= most:
        return ()
    return (f"{cards} cards have I/O ports, and {firmware} has room for those of {most}; expected fewer such cards",)


def _of_memory(vmi: VirtualMachineInstance, found: Hole | None, facts: Facts) -> tuple[str, ...]:
    if found is None:
        return ()
    wants = f"the cards' BARs need {found.window // GIB} GiB of the guest's addresses"
    if vmi.spec.architecture != "amd64":
        if found.window <= _ARM64_WINDOW:
            return ()
        return (f"{wants}, and an arm64 machine has {_ARM64_WINDOW // GIB}; expected fewer such cards",)
    said = []
    if _beyond_emulation(found, facts):
        said.append(f"{wants}, more than QEMU's own CPU can have with its {DEFAULT_BITS} address bits; expected KVM")
    elif facts.kvm and facts.address_bits is not None and facts.address_bits < found.address_bits:
        said.append(
            f"{wants}, which takes {found.address_bits} address bits, and this node's CPUs have {facts.address_bits}; "
            "expected fewer such cards, or a node whose `address sizes` in /proc/cpuinfo are larger"
        )
    if vmi.spec.efi is None:
        if above_4_gib(vmi.spec.domain.guest_memory):
            said.append(f"{wants}; SeaBIOS 1.16.3 (Debian 13) puts such BARs on top of each other; expected EFI")
    elif found.window > MOST_OF_OVMF:
        said.append(f"{wants}, and EFI has {MOST_OF_OVMF // GIB} at most; expected fewer such cards")
    return tuple(said)


def _beyond_emulation(hole: Hole, facts: Facts) -> bool:
    return not facts.kvm and hole.address_bits > DEFAULT_BITS
