"""What libvirt tells of the domain, and what its XML calls its parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from launcher.runtime import guest, operations
from launcher.runtime.hostdevs import Hostdev, hostdevs_in
from launcher.runtime.operations import VMState
from pci.address import PCIAddress, address_or_none

_OURS = "ua-"  # the beginning of a name of the manifest's, as libvirt has it


@dataclass(frozen=True)
class DomainSample:
    """`statistics`: libvirt's own, by their names (guest.statistics). `agent`: whether the guest's agent is connected,
    None without a channel for one."""

    state: VMState
    statistics: Mapping[str, Any]
    agent: bool | None


@dataclass(frozen=True)
class DomainNames:
    """The manifest's names of disks and network cards by libvirt's (`target`), and the host's devices
    that the guest has."""

    targets: Mapping[str, str]
    devices: tuple[Hostdev, ...]

    @property
    def functions(self) -> tuple[PCIAddress, ...]:
        """The addresses on the host of the PCI devices: a mediated one has none."""
        hosts = (address_or_none(device.host) for device in self.devices)
        return tuple(sorted(host for host in hosts if host is not None))


def asked(domain: Any) -> DomainSample:
    """Ask libvirt, which may answer late or never; Refusal for what it refuses."""
    return DomainSample(operations.state(domain), guest.statistics(domain), operations.has_agent(domain))


def names_in(xml: str, numbers: Mapping[int, int]) -> DomainNames:
    """Return the names in a domain of ours; `numbers` as of hostdevs_in()."""
    tree, targets = ElementTree.fromstring(xml), dict[str, str]()  # noqa: S314 it is ours
    for element in (*tree.iterfind("devices/disk"), *tree.iterfind("devices/interface")):
        target, alias = element.find("target"), element.find("alias")
        if target is not None and alias is not None:
            targets[target.get("dev", "")] = alias.get("name", "").removeprefix(_OURS)
    return DomainNames(targets, hostdevs_in(tree, numbers))
