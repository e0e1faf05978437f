"""The recorded node with eight GPUs, as if an H100's or a B200's Fabric Manager had them."""

from pathlib import Path

from pci.address import PCIAddress
from pci.sysfs.functions import read_host
from plugin.cards.config import Config
from plugin.cards.inventory import Inventory, take_inventory
from plugin.cards.names import read_pci_ids
from plugin.fabric.board import Board
from plugin.fabric.modules import ModuleIDs
from plugin.fabric.partitions import Partition, Table
from tests.fabric.standin import Sets
from tests.processes import FIXTURES

NODE = FIXTURES / "sysfs" / "hgx-a100-8-gpu"
#: In the order of module IDs, as one server has them: the order of bus numbers is another.
MODULES = {1: 3, 2: 1, 3: 4, 4: 2, 5: 7, 6: 5, 7: 8, 8: 6}


def inventory(sys: Path = NODE, config: Config | None = None) -> Inventory:
    return take_inventory(read_host(sys), config or Config(), read_pci_ids(FIXTURES / "pci.ids"))


#: By module ID: the addresses of the node's GPUs.
ADDRESSES = {
    module: [device.id for device in inventory().devices if device.lead.pci_class >> 16 == 3][place - 1]
    for module, place in MODULES.items()
}
MODULE_OF = {address: module for module, address in ADDRESSES.items()}


def ids(*without: int) -> ModuleIDs:
    known = {module: address for module, address in ADDRESSES.items() if module not in without}
    return ModuleIDs({PCIAddress.parse(address): module for module, address in known.items()})


def table(board: tuple[int, Sets], *active: tuple[int, ...]) -> Table:
    first, sets = board
    return Table(tuple(Partition(number, its, its in active) for number, its in enumerate(sets, start=first)))


def board(of: tuple[int, Sets], *without: int) -> Board:
    return Board(table(of), ids(*without))
