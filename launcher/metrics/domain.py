"""What libvirt tells of the domain, and what its XML calls its parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from launcher.runtime import guest, operations
from launcher.runtime.operations import VMState
from pci.address import PCIAddress

_OURS = "ua-"  # the beginning of a name of the manifest's, as libvirt has it


@dataclass(frozen=True)
class Domain:
    """`statistics`: libvirt's own, by their names (guest.statistics). `agent`: whether the guest's agent is connected,
    None without a channel for one."""

    state: VMState
    statistics: Mapping[str, Any]
    agent: bool | None


@dataclass(frozen=True)
class Names:
    """The manifest's names of disks and network cards by libvirt's (`target`), and the addresses of the guest's PCI
    devices on the host."""

    targets: Mapping[str, str]
    pci: tuple[PCIAddress, ...]


def asked(domain: Any) -> Domain:
    """Ask libvirt, which may answer late or never; Refusal for what it refuses."""
    return Domain(operations.state(domain), guest.statistics(domain), operations.has_agent(domain))


def names_in(xml: str) -> Names:
    """Return the names in a domain of ours."""
    tree, targets = ElementTree.fromstring(xml), dict[str, str]()  # noqa: S314 it is ours
    for element in (*tree.iterfind("devices/disk"), *tree.iterfind("devices/interface")):
        target, alias = element.find("target"), element.find("alias")
        if target is not None and alias is not None:
            targets[target.get("dev", "")] = alias.get("name", "").removeprefix(_OURS)
    sources = tree.iterfind("devices/hostdev[@type='pci']/source/address")
    return Names(targets, tuple(sorted(guest.address_of(each) for each in sources)))
