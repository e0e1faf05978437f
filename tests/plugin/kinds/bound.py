"""A node whose cards are bound and unbound: directories that stand for its /sys and /proc, and the binder's own."""

from collections.abc import Callable, Iterable
from pathlib import Path

from pci.address import PCIAddress
from pci.cards import card_of
from pci.sysfs.functions import read_host
from plugin.cards.config import Config
from plugin.changes import engine
from plugin.changes.engine import Roots, Write
from plugin.changes.journal import JournalFile
from plugin.changes.users import Users
from plugin.kinds.card import Plan, cards_to_bind, move, named_cards, plan_bind, plan_unbind
from plugin.kinds.drivers import DriverBinding
from plugin.kinds.survey import look
from tests.compose import RTX_2060, RTX_3090, Function, bridge, card, compose, desktop
from tests.faults import Faults, FaultyJournal
from tests.kernel import Sysfs, load

GPU = "0000:01:00.0"
OTHER = "0000:02:00.0"
#: The drivers of a card that nobody gave to vfio.
DAILY = ("nouveau", "snd_hda_intel", "xhci_hcd", "nvidia-gpu")

#: What binds the card that `rtx` makes.
BOUND = tuple(
    line
    for number in (3, 2, 1, 0)
    for line in (
        f"echo vfio-pci > /sys/bus/pci/devices/0000:01:00.{number}/driver_override",
        f"echo 0000:01:00.{number} > /sys/bus/pci/devices/0000:01:00.{number}/driver/unbind",
        f"echo 0000:01:00.{number} > /sys/bus/pci/drivers_probe",
    )
)


class Node:
    """These functions in a directory: /sys with vfio-pci loaded, an empty /proc, /lib/modules/RELEASE, the binder's
    state."""

    def __init__(self, root: Path, functions: Iterable[Function]) -> None:
        self.sys = root / "sys"
        self.proc = root / "proc"
        state = root / "state"
        self.roots = Roots(sys=self.sys, proc=self.proc, dev=root / "dev", modules=root / "modules", state=state)
        functions = tuple(functions)
        compose(self.sys, functions)
        load(self.sys, "vfio-pci", *(one.driver for one in functions if one.driver is not None))
        for one in functions:
            self.write(one.address, "driver_override", "(null)")
        self.proc.mkdir()
        state.mkdir()

    def write(self, address: str, name: str, text: str) -> None:
        (self.sys / "bus/pci/devices" / address / name).write_text(f"{text}\n")

    def to_bind(self, *addresses: str, config: Config | None = None) -> Plan:
        host = read_host(self.sys)
        cards = named_cards(host, map(PCIAddress.parse, addresses))
        return plan_bind(look(self.roots, host, cards, Users()), cards, config=config or Config(), skip=False)

    def to_bind_all(self, config: Config | None = None) -> Plan:
        host = read_host(self.sys)
        cards = cards_to_bind(host, config or Config())
        return plan_bind(look(self.roots, host, cards, Users()), cards, skip=True)

    def to_unbind(self, *addresses: str) -> Plan:
        host = read_host(self.sys)
        cards = named_cards(host, map(PCIAddress.parse, addresses))
        return plan_unbind(look(self.roots, host, cards, Users()), cards)

    def carry_out(
        self, plan: Plan, kernel: Callable[[Write], None] | None = None, faults: Faults | None = None
    ) -> None:
        faults = faults or Faults()
        journal = FaultyJournal(self.roots.state, self.roots.journal.boot, faults)
        write = faults.around(kernel or Sysfs(self.sys))
        move(engine.NodeIO(sys=self.sys, journal=journal, write=write, wait=lambda _: None), plan)

    def remembered(self) -> dict[str, DriverBinding]:
        return {
            address: DriverBinding(former.driver, former.override)
            for address, former in JournalFile(self.roots.state, "").read().former.items()
        }

    def drivers(self) -> list[str | None]:
        """Of the card's functions, the first one first."""
        host = read_host(self.sys)
        return [function.driver for function in card_of(host, PCIAddress.parse(GPU))]


def lines(plan: Plan) -> tuple[str, ...]:
    return tuple(str(write) for move in plan.moves for write in move.writes)


def addresses(plan: Plan) -> list[str]:
    return [str(move.address) for move in plan.moves]


def rtx(*drivers: str | None) -> tuple[Function, ...]:
    return desktop(card("0000:01:00", RTX_2060, path="pci0000:00/0000:00:01.0", group=1, drivers=drivers or DAILY))


def two_cards(*, groups: tuple[int, int] = (1, 5)) -> tuple[Function, ...]:
    first, second = groups
    return desktop(
        (
            *card("0000:01:00", RTX_2060, path="pci0000:00/0000:00:01.0", group=first, drivers=DAILY),
            bridge("0000:00:01.1", "8086:1905", path="pci0000:00", group=second),
            *card("0000:02:00", RTX_3090, path="pci0000:00/0000:00:01.1", group=second, drivers=DAILY[:2]),
        )
    )
