"""The host's devices in a domain's XML, the plan's or libvirt's own."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from xml.etree import ElementTree

from pci.address import PCIAddress

_USER_ALIAS = "ua-"  # the beginning of every alias that libvirt has not made up
#: In an alias, before the name of the manifest's entry: see launcher.vm.cards.claims.
_KIND = re.compile(r"^ua-(dra-)?[a-z]+-")


@dataclass(frozen=True)
class Hostdev:
    """A host device in a domain. `host`: its address or UUID on the host. `guest`: its PCI address in the guest, or the
    number of its USB port. `alias` is empty for a companion, whose alias libvirt has made up."""

    alias: str
    host: str
    guest: PCIAddress | int | None

    @property
    def name(self) -> str:
        """The name of its entry in the manifest."""
        return _KIND.sub("", self.alias)

    def __str__(self) -> str:
        place = f"USB port {self.guest}" if isinstance(self.guest, int) else self.guest or "nowhere"
        return f"{self.alias or 'companion'}: host {self.host} -> guest {place}"


def hostdevs_in(domain: ElementTree.Element, numbers: Mapping[int, int]) -> tuple[Hostdev, ...]:
    """Return the domain's host devices. `numbers`: the guest's bus numbers, by libvirt's index of the controller
    (Layout.numbers)."""
    return tuple(_hostdev(element, numbers) for element in domain.iterfind("devices/hostdev"))


def _hostdev(element: ElementTree.Element, numbers: Mapping[int, int]) -> Hostdev:
    alias, source, address = (element.find(path) for path in ("alias", "source/address", "address"))
    assert source is not None
    # libvirt gives names of its own, like hostdev0, to what the manifest doesn't name.
    name = alias.get("name", "") if alias is not None else ""
    name = name if name.startswith(_USER_ALIAS) else ""
    if element.get("type") == "usb":
        port = address.get("port") if address is not None else None
        return Hostdev(name, f"{source.get('bus')}:{source.get('device')}", None if port is None else int(port))
    host = source.get("uuid") or str(PCIAddress.from_attributes(source.attrib))
    if address is None:
        return Hostdev(name, host, None)
    theirs = PCIAddress.from_attributes(address.attrib)
    return Hostdev(name, host, replace(theirs, bus=numbers.get(theirs.bus, theirs.bus)))
