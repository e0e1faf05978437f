"""One look at the partitions, for commands that change nothing."""

from pathlib import Path

from plugin.cards.config import Fabric
from plugin.cards.inventory import Inventory
from plugin.fabric.activations import Book, read_book
from plugin.fabric.asking import Manager
from plugin.fabric.choosing import Board, ids_of
from plugin.fabric.modules import read_module_ids
from plugin.fabric.sight import Sight
from program.errors import Refusal


def look_now(settings: Fabric, state: Path, inventory: Inventory) -> Sight:
    """Ask the manager, and read who has what."""
    try:
        book = read_book(state) or Book()
        table = Manager(settings).table_now()
    except Refusal as error:
        return Sight(trouble=error.problem)
    return Sight(Board(table, ids_of(inventory, read_module_ids(settings, state))), book)
