"""The guest's seats, once they are chosen: cards that are not where they should be, and BARs that may have no room."""

from collections.abc import Iterable, Iterator

from launcher.checks.finding import warning
from launcher.guest import TOPOLOGY
from launcher.guest_pci.addresses import Layout
from program.finding import Finding
from program.problem import Problem, Severity


def misplaced(layout: Layout) -> Iterator[Finding]:
    """Yield the cards that the topology would have elsewhere."""
    for seat in layout.seats:
        if seat.misplaced is not None:
            yield warning(
                seat.claim.entry,
                seat.misplaced,
                f"let the kubelet's topology manager give CPUs of the card's node, or leave {TOPOLOGY} out",
            )


def of_bars(problems: Iterable[Problem]) -> Iterator[Finding]:
    """Yield the problems of launcher.guest_pci.bars as warnings."""
    for problem in problems:
        yield Finding(Severity.WARNING, problem)
