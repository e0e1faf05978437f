"""The guest's seats, once they are chosen: cards that are not where they should be, and BARs that may have no room."""

from collections.abc import Iterable, Iterator

from launcher.checks.finding import Finding, Level, said, warning
from launcher.guest import TOPOLOGY
from launcher.guest_pci.addresses import Layout


def misplaced(layout: Layout) -> Iterator[Finding]:
    """Cards that the topology would have elsewhere."""
    for seat in layout.seats:
        if seat.misplaced is not None:
            yield warning(
                seat.claim.entry,
                seat.misplaced.replace("; ", ": "),
                f"let the kubelet's topology manager give CPUs of the card's node, or leave {TOPOLOGY} out",
            )


def of_bars(warnings: Iterable[str]) -> Iterator[Finding]:
    """What launcher.guest_pci.hole has to say."""
    for text in warnings:
        yield said(Level.WARNING, text, "BARs")
