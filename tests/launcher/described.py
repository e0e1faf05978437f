"""A guest and its claims, as a libvirt domain describes them: all that the hook has to go on.

Nothing here reads a manifest, or imports what does.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.hook.kubevirt_domain import VMIRequest, guest_in, named_in, parsed, pinning_in
from launcher.vm.cards.guest import GuestCard, whole_cards
from launcher.vm.cpu.facts import processors_of
from launcher.vm.facts import Facts
from launcher.vm.guest_pci.addresses import Layout
from launcher.vm.guest_pci.bars import Hole, hole, read_bars
from launcher.vm.guest_pci.topology import laid_out
from pci.sysfs.functions import read_host


@dataclass(frozen=True)
class LaidOut:
    cards: tuple[GuestCard, ...]
    layout: Layout
    hole: Hole | None


def laid_out_by(domain: str, sysfs: Path, companions: Any = "card", **annotations: Any) -> LaidOut:
    """The domain's cards from sysfs, their seats, and the hole; `annotations` are fields of Guest, which the hook has
    from the VM's annotations."""
    root, asked = parsed(domain.encode()), VMIRequest()
    # A guest's own cells are no part of what its annotations ask for.
    passes_through = root.find("memoryBacking/allocation[@mode='immediate']") is not None
    guest = replace(guest_in(root, asked), passes_numa_through=passes_through, **annotations)
    host = read_host(sysfs)
    facts = Facts(kvm=root.get("type") == "kvm", processors=processors_of(sysfs))
    cards = whole_cards(tuple(named_in(root, asked)), (), host, companions)
    facts = replace(facts, bars=read_bars(sysfs, cards))
    layout = laid_out(guest, cards, host, facts, pinning_in(root))
    return LaidOut(cards, layout, hole(guest, layout, facts)[0])
