"""The node's page: what it says beside what all pages say (test_agreement.py), and that no name becomes part of it."""

from dataclasses import replace

from lxml import html

from pci.host import Fault, Host
from plugin.cards.names import PCIIDs
from plugin.changes.users import Assignment
from plugin.pages.page import node_page
from program.problem import one_line
from tests.conftest import Machine
from tests.pages import assert_closed, devices_on
from tests.snapshots import snapshot_of

GPU, RESOURCE = "0000:01:00.0", "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
HOSTILE = "</script></style></svg></main><script>alert(1)</script><img src=x onerror=alert(1)>&lt;\"'\0\x1b\u202e"


def test_a_card_has_its_user_and_its_place(machine: Machine, pci_ids: PCIIDs) -> None:
    assigned = frozenset({Assignment("vms/desk", RESOURCE, GPU)})
    seen = snapshot_of(machine("rtx-2060"), pci_ids, assignments=assigned, sees_pods=True)
    page = node_page(seen)
    assert_closed(page.html, page.policy)
    (card,) = (each for each in devices_on(page.html) if each.id == GPU)
    assert card == (GPU, "in use", "pod vms/desk", None)
    text = html.document_fromstring(page.html).text_content()
    assert RESOURCE in text
    assert "driver vfio-pci, IOMMU group 1" in text
    assert "Not known now: device nodes, functions off the bus, PCIe errors." in text


def test_the_nodes_name_is_in_title_and_heading(machine: Machine, pci_ids: PCIIDs) -> None:
    """Whoever has the pages of several nodes open sees which is which."""
    seen = replace(snapshot_of(machine("rtx-2060"), pci_ids, sees_pods=True), node="gpu-1")
    root = html.document_fromstring(node_page(seen).html)
    heading = root.findtext("body/main/h1")
    assert heading is not None
    assert heading.startswith("gpu-1: 2 devices: ")
    assert root.findtext("head/title") == f"{heading} - gpu-plugin"


def test_a_node_without_cards_says_so(pci_ids: PCIIDs) -> None:
    nothing = Host(functions={}, groups={}, noiommu=frozenset(), faults=())
    page = node_page(snapshot_of(nothing, pci_ids), sees_node=False)
    assert_closed(page.html, page.policy)
    assert "<h1>This node has no GPU, and no device that the config offers</h1>" in page.html
    assert "The node cannot be looked at now: everything stands as it was seen last." in page.html


def test_hostile_names_stay_text(machine: Machine, pci_ids: PCIIDs) -> None:
    names = frozenset({Assignment(f"vms/{HOSTILE}", RESOURCE, GPU)})
    honest = snapshot_of(machine("rtx-2060"), pci_ids, sees_pods=True)
    host = replace(honest.host, faults=(Fault(HOSTILE, HOSTILE),))
    hostile = replace(honest, node=HOSTILE, assignments=names, host=host)
    page = node_page(hostile)
    assert_closed(page.html, page.policy)
    assert page.policy == node_page(honest).policy
    root = html.document_fromstring(page.html)
    assert not list(root.iter("img"))
    assert len(list(root.iter("script"))) == 1
    (card,) = (each for each in devices_on(page.html) if each.id == GPU)
    assert card.user == f"pod vms/{one_line(HOSTILE)}"
    assert f"Not read: {one_line(HOSTILE)}: {one_line(HOSTILE)}" in root.text_content()
