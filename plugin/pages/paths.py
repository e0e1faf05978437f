"""Marks of the switches' ports: how each handles a card's requests to another card (ACS)."""

from collections.abc import Iterable, Mapping
from enum import Enum

from pci.address import PCIAddress
from pci.host import PeerToPeer
from plugin.node.snapshot import Snapshot, peers_of
from plugin.pages.boxes import Box


class Mark(Enum):
    """A port's mark, and its meaning."""

    REDIRECTS = "ACS redirects", "requests to other cards go up to the root complex and back: slow"
    BUT_TRANSLATED = "ACS redirects, but ATS", "as ACS redirects, but what ATS has translated goes straight to the card"
    PASSES_ON = "no redirection", "requests to other cards go straight there, past the IOMMU"
    UNKNOWN = "ACS unknown", "the port sleeps, or its ACS cannot be read"

    def __init__(self, word: str, meaning: str) -> None:
        self.word = word
        self.meaning = meaning


def marks_of(snapshot: Snapshot, boxes: Iterable[Box]) -> Mapping[PCIAddress, Mark]:
    """Return the marks of the switches' downstream ports above these boxes, if they are on the way between cards; none
    if none could be read: only root can read them. Other ports redirect requests only to where they go anyway."""
    read, peers = snapshot.inspection.peer_to_peer, peers_of(snapshot.host, snapshot.inventory)
    # Below the root port each switch, or level of one, has an upstream port and downstream ports.
    above = {port for peer in peers for port in peer.bridges[2::2]}
    ports = above & {port for box in boxes for port in box.at.bridges[2::2]}
    if not any(port in read for port in ports):
        return {}
    return {port: _mark(read.get(port)) for port in sorted(ports)}


def _mark(port: PeerToPeer | None) -> Mark:
    if port is None:
        return Mark.UNKNOWN
    if not port.redirects:
        return Mark.PASSES_ON
    return Mark.BUT_TRANSLATED if port.passes_translated else Mark.REDIRECTS
