"""The file of what gpu-plugin made of cards, so that nothing is taken away that somebody else made.

    {"boot": "5f0e...", "types": {"0000:41:00.4": {"number": 1155, "name": "NVIDIA L40S-24Q"}}, "mdevs": {},
     "functions": {"0000:41:00.0": 16}, "unprobed": []}

A boot takes all of it from the hardware, so the file of another boot has nothing. An entry is written before the
hardware is: after a crash it may name what was never made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from pci.address import PCIAddress
from pci.host import Host
from plugin.state_files import StateFile, json_of


@dataclass(frozen=True, slots=True)
class Type:
    """A type of vGPUs: its number, which depends on card and driver, and its name."""

    number: int
    name: str


@dataclass(frozen=True, slots=True)
class Made:
    """What gpu-plugin made in the boot with this ID: the types of virtual functions by their addresses, the parents of
    mediated devices by UUID, and how many virtual functions it turned on, by the card's address; `unprobed` are cards
    from whose new virtual functions it keeps the host's drivers while it makes them."""

    boot: str
    types: Mapping[str, Type] = field(default_factory=dict)
    mdevs: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, int] = field(default_factory=dict)
    unprobed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for address in (*self.types, *self.mdevs.values(), *self.functions, *self.unprobed):
            PCIAddress.parse(address)
        for uuid in self.mdevs:
            UUID(uuid)


def made_file(state: Path, boot: str) -> StateFile[Made]:
    return StateFile(
        path=state / "vgpus.json",
        of=json_of(Made),
        wrong="is not what gpu-plugin wrote",
        fix="remove it, and gpu-plugin leaves the vGPUs that are there to you",
        boot=boot,
    )


def read_made(state: Path, boot: str) -> Made:
    """Read what was made in this boot; Broken if the file is not what gpu-plugin wrote."""
    return made_file(state, boot).recover() or Made(boot)


def still_there(host: Host, made: Made) -> Made:
    """Return the entries that exist: an ended call may have written what it had not made yet. A card that has no driver
    is still ours: sriov-manage unbinds it."""
    now = {str(one.address): one.vgpu_type for one in host.functions.values()}
    cut = {str(one.physical_function) for one in host.functions.values()}
    cut |= {str(one.address) for one in host.functions.values() if one.driver is None}
    mdevs = {str(mdev.uuid) for mdev in host.mdevs}
    return replace(
        made,
        types={address: one for address, one in made.types.items() if now.get(address) == one.number},
        mdevs={uuid: parent for uuid, parent in made.mdevs.items() if uuid in mdevs},
        functions={card: count for card, count in made.functions.items() if card in cut},
    )


def types_of(host: Host, made: Made) -> Mapping[int, str]:
    """Return the names of vGPU types by number: also of those that no function can become any more."""
    return {**{one.number: one.name for one in made.types.values()}, **host.vgpu_types}
