"""What the hook would change in a domain: its cards, and the lines of XML that differ (`hook --explain`)."""

import difflib

from lxml import etree

from launcher.hook.edits import EXPANDER, devices_of, leave, other_bridges
from launcher.hook.kubevirt_domain import guest_address_of, parsed
from launcher.hook.rewrite import Rewritten
from pci.address import PCIAddress
from program.problem import one_line

#: Where libvirt puts a screen. KubeVirt has no address for it.
_LIBVIRTS_SCREEN = PCIAddress(0, 0, 1, 0)


def before_libvirt(domain: bytes) -> bytes:
    """Return the domain as KubeVirt writes it at the next start: without the ports and addresses that libvirt added,
    since a card with an address counts as placed by KubeVirt."""
    root = parsed(domain)
    devices, bridges = devices_of(root), {bridge.index: bridge for bridge in other_bridges(root)}

    def is_libvirts(bus: int) -> bool:
        """Return whether libvirt added every bridge above this bus: those of KubeVirt begin with an expander."""
        for _ in bridges:
            if bus not in bridges or bridges[bus].model == EXPANDER:
                break
            bus = bridges[bus].address.bus
        return bus == 0

    for index in [index for index in bridges if is_libvirts(index)]:
        for controller in devices.findall(f"controller[@type='pci'][@index='{index}']"):
            devices.remove(controller)
    for device in devices:
        at = guest_address_of(device)
        if at is not None and (is_libvirts(at.bus) if at.bus else device.tag == "video" and at == _LIBVIRTS_SCREEN):
            leave(device)
    return etree.tostring(root)


def explained(domain: bytes, answer: Rewritten) -> str:
    """Return a line for each card, then the change as `diff -u` prints it, one XML element a line."""
    lines = [one_line(line) for line in answer.cards] or ["The domain has no cards, and stays as it is."]
    before, after = _lines(domain), _lines(answer.xml)
    changes = difflib.unified_diff(before, after, "KubeVirt's domain", "the hook's", lineterm="")
    return "\n".join([*lines, "", *changes]).rstrip() + "\n"


def _lines(domain: bytes) -> list[str]:
    root = etree.fromstring(domain, etree.XMLParser(remove_blank_text=True))
    return etree.tostring(root, encoding="unicode", pretty_print=True).splitlines()
