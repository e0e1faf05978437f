"""Findings about the paths between cards: the bridges that a card's request to another card's memory goes through."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from pci.address import PCIAddress
from pci.functions import is_gpu, what
from pci.host import Function
from plugin.doctor.finding import Check, NodeFinding, note
from plugin.node.snapshot import Snapshot, peers_of

_PAGE = "docs/peer-to-peer.md has what to set, where, and the test in the guest"


def of_paths(snapshot: Snapshot) -> Iterator[NodeFinding]:
    """Yield a note for the cards below each switch, and one for all other pairs of GPUs."""
    peers = peers_of(snapshot.host, snapshot.inventory)
    gpus = [peer for peer in peers if is_gpu(peer)]
    below = defaultdict[PCIAddress, list[Function]](list)
    for peer in peers:
        below[peer.switch or peer.address].append(peer)
    for together in below.values():
        if len(together) > 1:
            yield note(
                Check.PEER_TO_PEER, f"{_named(together)}: behind one switch, {_switch(snapshot, together)}", _PAGE
            )
    if len(gpus) > 1 and len({key for key, its in below.items() if any(map(is_gpu, its))}) > 1:
        which = "GPUs behind different switches" if len(below) < len(peers) else f"{_named(gpus)}: no two"
        rest = "reach each other" if len(below) < len(peers) else "are behind one switch, and they reach each other"
        yield note(
            Check.PEER_TO_PEER, f"{which} {rest} through root complexes and the IOMMU, whatever ACS and ATS say", _PAGE
        )


def _named(peers: Sequence[Function]) -> str:
    return ", ".join(map(what, peers))


def _switch(snapshot: Snapshot, together: Sequence[Function]) -> str:
    """Return how the switch handles requests between these functions, by ACS of the ports below it."""
    read = snapshot.inspection.peer_to_peer
    ports = dict.fromkeys(bridge for peer in together for bridge in peer.bridges[2:])
    if not all(port in read for port in ports):
        return _by_groups(together)
    redirecting = [read[port] for port in ports if read[port].redirects]
    if not redirecting:
        return "whose ports pass requests on without redirection (ACS): fast, and past the IOMMU"
    direct = all(port.passes_translated for port in redirecting)
    with_ats = [peer for peer in together if (its := read.get(peer.address)) is not None and its.ats]
    shown = ", ".join(f"0x{control:02x}" for control in sorted({port.acs or 0 for port in redirecting}))
    if direct and with_ats:
        return (
            f"whose ports redirect requests to the root complex but those that ATS has translated (ACS {shown}): "
            f"ATS is on for {_addresses(with_ats)}"
        )
    why = "their ACS has no DirectTrans" if not direct else "ATS is off"
    return f"whose ports redirect requests to the root complex (ACS {shown}): works, and is slow, since {why}"


def _by_groups(together: Sequence[Function]) -> str:
    groups = {peer.iommu_group for peer in together}
    if len(groups) == len(together):
        return (
            "each in an IOMMU group of its own: the ports' ACS redirected requests to the root complex when the node "
            "booted, and what it is now only root can read"
        )
    return "in shared IOMMU groups: not every port has ACS, and what it is now only root can read"


def _addresses(peers: Sequence[Function]) -> str:
    return ", ".join(str(address) for address in sorted(peer.address for peer in peers))
