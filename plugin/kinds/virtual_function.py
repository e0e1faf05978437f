"""Virtual functions that guests get as they are: a card's driver makes all of them at once, since the kernel changes
their number only by way of 0. Drivers that differ have a row in VENDORS."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from pci.address import PCIAddress
from pci.functions import is_vfio_driver
from pci.sysfs.functions import DEVICES
from pci.sysfs.vgpus import AUTOPROBE, COUNT, quota_directory, read_quotas
from pci.vgpus import CutCard
from plugin.cards.vgpu_rules import Quota
from plugin.changes.engine import Failed, NodeChange, NodeIO, Wedged, Write
from plugin.changes.journal import Journal
from plugin.kinds.cut import CardChange, Survey
from plugin.kinds.drivers import DriverBinding, writes
from program.problem import Problem, summary

_LOOKS = 20  # for the kernel's delayed changes
_ASK_THE_KERNEL = "see the kernel's log (dmesg)"
_ASK_FOR_VFIO = "see the kernel's log (dmesg); vfio needs an IOMMU that is turned on"


@dataclass(frozen=True, slots=True)
class Vendor:
    """How a card's driver handles virtual functions. `takers` are the drivers that give them to guests, the best first.
    `counts`, for a driver that takes no number, returns why the card cannot get so many; None if it has them."""

    takers: tuple[str, ...] = ("vfio-pci",)
    counts: Callable[[CutCard, int], Problem | None] | None = None


def _gim(card: CutCard, count: int) -> Problem | None:
    """Return why the card has another number: gim's parameters are fixed at loading, and it has no sriov_configure."""
    if (now := len(card.functions)) == count:
        return None
    wrong = f"has {now} virtual functions, expected {count}: gim makes them when it is loaded"
    return Problem(str(card.address), wrong, "load gim with another vf_num, and with no guest on the card")


def _nvidia(card: CutCard, count: int) -> Problem | None:
    wrong = "is on nvidia, which turns on all virtual functions at once"
    return Problem(str(card.address), wrong, "name types, not functions")


#: The cards' drivers that differ from others.
VENDORS: Mapping[str, Vendor] = MappingProxyType(
    {"xe": Vendor(takers=("xe-vfio-pci", "vfio-pci")), "gim": Vendor(counts=_gim), "nvidia": Vendor(counts=_nvidia)}
)


def wanted(
    survey: Survey,
    card: CutCard,
    count: int,
    quota: Mapping[Quota, int],
    vendors: Mapping[str, Vendor] = VENDORS,
) -> Iterator[NodeChange | Problem]:
    """Yield the changes that make `count` virtual functions with this quota each, or why they cannot be made."""
    now, name, vendor = len(card.functions), str(card.address), vendors.get(card.function.driver or "", Vendor())
    driver = next((each for each in vendor.takers if each in survey.drivers), None)
    if vendor.counts is not None:
        if (problem := vendor.counts(card, count)) is not None:
            yield problem
    elif card.function.driver is None:
        yield Problem(name, "has no driver, so it can have no virtual functions", "load its driver")
    elif count > card.possible:
        yield Problem(name, f"can have {card.possible} virtual functions, expected {count}", "ask for fewer")
    elif driver is None:
        yield Problem(name, "its virtual functions need vfio-pci, which is not loaded", "modprobe vfio-pci")
    elif now == count and _has(card, quota):
        # Functions that others made keep their driver.
        if name in survey.journal.functions and any(each.driver is None for each in card.functions):
            yield Give(card.address, driver)
    elif now and (reason := _cannot_be_recut(survey, card)) is not None:
        wrong = f"has {now} virtual functions, expected {count}{' with other quotas' if now == count else ''}: {reason}"
        yield Problem(name, wrong, "end that, or turn them off yourself: they change all at once")
    else:
        if now:
            yield Count(card.address, now, 0)
        yield from _made(card, count, [(one, quota) for one in range(1, count + 1)], [driver])


def given_back(survey: Survey, card: CutCard) -> Iterator[NodeChange | Problem]:
    """Yield the change that turns off the card's functions if gpu-plugin made them; a problem if one is in use."""
    ours = survey.journal.functions.get(str(card.address))
    if ours != len(card.functions):
        return  # somebody else made them since
    if (reason := _cannot_be_recut(survey, card)) is not None:
        wrong = f"has virtual functions for which the config has no place: {reason}"
        yield Problem(str(card.address), wrong, "apply again when that has ended")
    else:
        yield Count(card.address, ours, 0)


def unfinished(survey: Survey, card: CutCard) -> tuple[Sequence[NodeChange], CutCard]:
    """Return the changes that repair what an interrupted call left, and the card after them."""
    if str(card.address) not in survey.journal.unprobed:
        return [], card
    quotas = {} if card.functions else card.quotas
    changes = [
        Grant(card.address, function, Quota(file), 0)
        for function, values in quotas.items()
        for file, value in values.items()
        if value
    ]
    return [*changes, Probe(card.address, on=True)], replace(card, autoprobe=True)


def _has(card: CutCard, quota: Mapping[Quota, int]) -> bool:
    functions = range(1, len(card.functions) + 1)
    return all(card.quotas.get(one, {}).get(file) == value for one in functions for file, value in quota.items())


def _made(
    card: CutCard, count: int, quotas: Sequence[tuple[int, Mapping[Quota, int]]], drivers: Sequence[str]
) -> Iterator[NodeChange]:
    """Yield the changes from no virtual function to `count`, keeping the host's drivers from them meanwhile."""
    if card.autoprobe:
        yield Probe(card.address, on=False)
    for function, quota in quotas:
        for file, value in quota.items():
            yield Grant(card.address, function, file, value)
    yield Count(card.address, 0, count)
    if card.autoprobe:
        yield Probe(card.address, on=True)
    for driver in drivers:
        yield Give(card.address, driver)


def _cannot_be_recut(survey: Survey, card: CutCard) -> str | None:
    if survey.journal.functions.get(str(card.address)) != len(card.functions):
        return "somebody else made them"
    if (reason := survey.use_of(card)) is not None:
        return reason
    drivers = (one for one in card.functions if one.driver is not None and not is_vfio_driver(one.driver))
    return next((f"{one.address} is on {one.driver}" for one in drivers), None)


@dataclass(frozen=True, slots=True)
class Probe(CardChange):
    """A setting of the card: whether the kernel's drivers take new virtual functions."""

    on: bool

    def __str__(self) -> str:
        return (
            f"{'let' if self.on else 'keep'} the host's drivers {'take' if self.on else 'from'} new virtual functions"
        )

    def before(self, journal: Journal) -> Journal:
        ours = {*journal.unprobed, str(self.card)}
        return journal if self.on else replace(journal, unprobed=tuple(sorted(ours)))

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        path = f"{DEVICES}/{self.card}/{AUTOPROBE}"
        node.do_writes([Write(path, str(int(self.on)))])
        if self.read(node).autoprobe is not self.on:
            raise Failed(path, f"does not become {int(self.on)}", _ASK_THE_KERNEL)
        return (Probe(self.card, not self.on),)

    def after(self, journal: Journal) -> Journal:
        left = (each for each in journal.unprobed if each != str(self.card))
        return replace(journal, unprobed=tuple(left)) if self.on else journal


@dataclass(frozen=True, slots=True)
class Grant(CardChange):
    """A quota that xe gives the virtual function with this number, from 1."""

    function: int
    quota: Quota
    value: int

    def __str__(self) -> str:
        return f"give virtual function {self.function} {self.quota} {self.value}"

    @property
    def path(self) -> str:
        return f"{quota_directory(self.card, self.function)}/{self.quota}"

    def now(self, node: NodeIO) -> int | None:
        quotas: Mapping[str, int] = node.ask(read_quotas, node.sys, self.card, self.function)
        return quotas.get(self.quota)

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        before = self.now(node)
        if before is None:
            raise Failed(self.path, "is not there", "leave the quota out, or use a kernel that has it")
        if before == self.value:
            return ()
        node.do_writes([Write(self.path, str(self.value))])
        if (now := self.now(node)) != self.value:
            wrong = f"has become {now}, expected {self.value}"
            raise Failed(self.path, wrong, "ask for a value that the driver takes")
        return (Grant(self.card, self.function, self.quota, before),)


@dataclass(frozen=True, slots=True)
class Count(CardChange):
    """The change of the number of virtual functions, from or to none."""

    now: int
    count: int

    def __str__(self) -> str:
        return f"{self.now} virtual functions -> {self.count}"

    def is_needed(self, node: NodeIO) -> bool:
        functions = self.read(node).functions
        if len(functions) != self.now:
            wrong = f"has {len(functions)} virtual functions, expected {self.now}"
            raise Failed(self.card, wrong, "apply again")
        for function in functions:
            node.refuse_use(str(function.address))
        return True

    def before(self, journal: Journal) -> Journal:
        return journal.with_entry("functions", str(self.card), self.count) if self.count else journal

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        before = self.read(node)
        node.do_writes([Write(f"{DEVICES}/{self.card}/{COUNT}", str(self.count))])
        if not node.awaited(lambda: len(self.read(node).functions) == self.count, _LOOKS):
            raise Failed(self.card, f"does not get {self.count} virtual functions", _ASK_THE_KERNEL)
        if self.count:
            return (Count(self.card, self.count, self.now),)
        # With their quotas and drivers, which the kernel forgets.
        quotas = [
            (number, {Quota(file): value for file, value in its.items()}) for number, its in before.quotas.items()
        ]
        drivers = sorted({function.driver for function in before.functions if function.driver is not None})
        return tuple(_made(before, self.now, quotas, drivers))

    def after(self, journal: Journal) -> Journal:
        return journal if self.count else self._forgotten(journal)

    def undone(self, journal: Journal) -> Journal:
        return self._forgotten(journal) if self.count else journal

    def _forgotten(self, journal: Journal) -> Journal:
        return journal.without("functions", str(self.card))


_FREE = DriverBinding(None, None)


@dataclass(frozen=True, slots=True)
class Give(CardChange):
    """The binding of the card's virtual functions that have no driver to this one."""

    driver: str

    def __str__(self) -> str:
        return f"give its virtual functions to {self.driver}"

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        free = tuple(each.address for each in self.read(node).functions if each.driver is None)
        back = _TakeBack(self.card, self.driver, free)
        try:
            for number, address in enumerate(free, start=1):
                back = _TakeBack(self.card, self.driver, free[:number])
                node.do_writes(writes(address, _FREE, DriverBinding(self.driver, self.driver)))
            functions = self.read(node).functions
            if left := [str(each.address) for each in functions if each.address in free and each.driver is None]:
                raise Failed(summary(left), f"is not taken by {self.driver}", _ASK_FOR_VFIO)
        except Wedged:
            raise
        except Failed:
            back.do(node)
            raise
        return (back,)


@dataclass(frozen=True, slots=True)
class _TakeBack(CardChange):
    """The unbinding of these virtual functions from their driver."""

    driver: str
    functions: tuple[PCIAddress, ...]

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        for address in reversed(self.functions):
            node.do_writes(writes(address, DriverBinding(self.driver, self.driver), _FREE))
        return ()
