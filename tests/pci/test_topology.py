from pathlib import Path

from pci.address import PCIAddress
from pci.host import Host
from pci.sysfs.functions import read_host
from pci.topology import Branch, BridgeKind, TreeNode, Twig, tree
from tests.compose import RTX_3090, Function, bridge, card, compose
from tests.conftest import Machine


def sketch(node: TreeNode[str]) -> object:
    """A node as a test can spell it: a leaf's name and port, a branch's kind, ports and what is below."""
    port = "" if node.port is None else f" at {node.port}"
    if isinstance(node, Twig):
        return node.leaf + port
    ports = [" " * level + str(address) for level, address in node.ports]
    return (node.kind + port, ports, [sketch(below) for below in node.below])


def sketches(host: Host, root: str, *addresses: str) -> list[object]:
    leaves = [host.functions[PCIAddress.parse(address)] for address in addresses]
    assert {leaf.root for leaf in leaves} == {root}
    pci_ids = {address: function.pci_id for address, function in host.functions.items()}
    return [sketch(node) for node in tree([(leaf.bridges, str(leaf.address)) for leaf in leaves], pci_ids)]


def test_a_switchs_ports_are_one_switch_and_its_downstream_ports_say_what_is_where(machine: Machine) -> None:
    assert sketches(read_host(machine("lab-modern")), "pci0000:00", "0000:01:00.0", "0000:04:00.0", "0000:05:00.0") == [
        ("root port", ["0000:00:04.0"], ["0000:01:00.0"]),
        (
            "root port",
            ["0000:00:05.0"],
            [("switch", ["0000:02:00.0"], ["0000:04:00.0 at 0000:03:00.0", "0000:05:00.0 at 0000:03:00.1"])],
        ),
    ]


def test_levels_of_equal_ports_are_one_switch(machine: Machine) -> None:
    """The PEX88096 of an HGX A100 shows two levels."""
    (root_port,) = sketches(read_host(machine("hgx-a100-8-gpu")), "pci0000:40", "0000:47:00.0", "0000:4e:00.0")
    assert root_port == (
        "root port",
        ["0000:40:01.1"],
        [
            (
                "switch",
                ["0000:41:00.0", " 0000:42:00.0", "  0000:43:00.0", " 0000:42:08.0", "  0000:45:00.0"],
                ["0000:47:00.0 at 0000:44:10.0", "0000:4e:00.0 at 0000:46:10.0"],
            )
        ],
    )


def chained(tmp_path: Path, *pci_ids: str) -> Host:
    """A card behind this chain of bridges."""
    path, functions = "pci0000:00", list[Function]()
    for number, pci_id in enumerate(pci_ids):
        address = f"0000:{number:02x}:01.0"
        functions.append(bridge(address, pci_id, path=path, group=number))
        path = f"{path}/{address}"
    compose(tmp_path / "sys", [*functions, *card("0000:41:00", RTX_3090, path=path, group=99)])
    return read_host(tmp_path / "sys")


def test_a_switch_of_another_kind_behind_a_switch_is_another_one(tmp_path: Path) -> None:
    host = chained(tmp_path, "1022:1483", "1000:c010", "1000:c010", "1002:1478", "1002:1479")
    inner = ("switch at 0000:02:01.0", ["0000:03:01.0"], ["0000:41:00.0 at 0000:04:01.0"])
    assert sketches(host, "pci0000:00", "0000:41:00.0") == [
        ("root port", ["0000:00:01.0"], [("switch", ["0000:01:01.0"], [inner])])
    ]


def test_a_bridge_with_no_bridge_behind_it_is_no_switch(tmp_path: Path) -> None:
    """A bridge to conventional PCI."""
    host = chained(tmp_path, "1022:1483", "10b5:8112")
    assert sketches(host, "pci0000:00", "0000:41:00.0") == [
        ("root port", ["0000:00:01.0"], [("bridge", ["0000:01:01.0"], ["0000:41:00.0"])])
    ]


def test_what_sits_on_the_root_complex_itself_has_no_port_and_comes_first(machine: Machine) -> None:
    assert sketches(read_host(machine("rtx-2060")), "pci0000:00", "0000:01:00.0", "0000:00:02.0") == [
        "0000:00:02.0",
        ("root port", ["0000:00:01.0"], ["0000:01:00.0"]),
    ]


def test_a_bridge_that_cannot_be_read_is_known_by_its_place() -> None:
    """The port above the HGX machine's console is not among its functions."""
    (root_port,) = tree([((PCIAddress.parse("0000:e0:05.0"),), "0000:e2:00.0")], {})
    assert isinstance(root_port, Branch)
    assert (root_port.kind, root_port.pci_id) == (BridgeKind.ROOT_PORT, None)
