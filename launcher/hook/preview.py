"""What the hook would change in a domain, for a person: its cards, and the lines of XML that differ."""

import difflib

from lxml import etree

from launcher.hook.edits import EXPANDER, devices_of, leave, other_bridges
from launcher.hook.kubevirt_domain import guest_address_of, parsed
from launcher.hook.rewrite import Rewritten
from pci.address import PCIAddress
from program.problem import one_line

#: Where libvirt puts a screen. KubeVirt knows no address of one.
_LIBVIRTS_SCREEN = PCIAddress(0, 0, 1, 0)


def before_libvirt(domain: bytes) -> bytes:
    """The domain as KubeVirt writes it at the next start: without the ports and addresses that libvirt has added, in
    which the hook would find a card that KubeVirt has placed."""
    root = parsed(domain)
    devices, bridges = devices_of(root), {bridge.index: bridge for bridge in other_bridges(root)}

    def is_libvirts(bus: int) -> bool:
        """Whether all bridges above are libvirt's: KubeVirt's own begin with an expander."""
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
    """A line for each card, then the change as `diff -u` has it, of the XML with an element a line."""
    lines = [one_line(line) for line in answer.cards] or ["The domain has no cards, and stays as it is."]
    before, after = _lines(domain), _lines(answer.xml)
    changes = difflib.unified_diff(before, after, "KubeVirt's domain", "the hook's", lineterm="")
    return "\n".join([*lines, "", *changes]).rstrip() + "\n"


def _lines(domain: bytes) -> list[str]:
    root = parsed(domain)
    for element in root.iter():
        # The space between elements, and no text.
        if len(element) and not (element.text or "").strip():
            element.text = None
        if not (element.tail or "").strip():
            element.tail = None
    etree.indent(root)
    return etree.tostring(root, encoding="unicode").splitlines()
