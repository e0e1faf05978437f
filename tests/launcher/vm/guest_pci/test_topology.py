"""Where the cards of whole manifests are, on recorded and composed machines."""

from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import pytest

from launcher.vm.cards.guest import GuestCard
from launcher.vm.facts import Facts
from launcher.vm.from_spec import guest_of
from launcher.vm.guest_pci.addresses import Layout
from launcher.vm.guest_pci.topology import laid_out
from pci.host import Host
from pci.processors import NUMANode, Processors
from pci.sysfs.functions import read_host
from tests.compose import RTX_3090, Function, bridge, card, compose
from tests.launcher.cases import case
from tests.launcher.vm.guest_pci.test_addresses import Way, distance, in_guest, levels
from tests.launcher.vms import RTX_3090 as RESOURCE
from tests.launcher.vms import RTX_3090_VARIABLE, cards_of, read_manifest, vmi_text

GPU = RTX_3090[:1]
VGPU = "11111111-0000-4000-8000-000000000001"


def of_case(name: str) -> tuple[tuple[GuestCard, ...], Host, Layout]:
    start = case(name).world().start(case(name).vm)
    assert start.host is not None
    assert start.layout is not None
    return start.cards, start.host, start.layout


def of_machine(
    directory: Path, functions: Iterable[Function], value: str, *, topology: str = "mirror", nodes: int = 0
) -> Layout:
    """A VM with a gpu for each address of `value`, on a machine of these functions and so many NUMA nodes."""
    compose(directory / "sys", functions)
    host = read_host(directory / "sys")
    gpus = [(f"gpu{number}", RESOURCE) for number in range(value.count(",") + 1)]
    vm = directory / "vm.yaml"
    annotations = f"{{name: vm, annotations: {{gpu-launcher.dev/topology: {topology}}}}}"
    vm.write_text(vmi_text(gpus=gpus).replace("{name: vm}", annotations))
    vmi = read_manifest(vm)
    cards = cards_of(vmi, {RTX_3090_VARIABLE: value}, host)
    processors = Processors(nodes=tuple(NUMANode(id=node, cpus=(node,)) for node in range(nodes)))
    return laid_out(guest_of(vmi), cards, host, Facts(processors=processors), None)


def on_host(one: GuestCard, host: Host) -> Way:
    function = host.functions[one.functions[0]]
    # Of a chain of bridges, every second is a switch's upstream port.
    return Way(root=function.root, node=function.numa_node, switches=tuple(map(str, function.bridges[1::2])))


def test_the_mirror_of_an_hgx_has_the_distance_of_every_two_gpus() -> None:
    cards, host, found = of_case("topology-mirror")
    outside, inside = [on_host(one, host) for one in cards], in_guest(found)
    kinds = []
    for one, other in combinations(range(8), 2):
        assert distance(inside[one], inside[other]) == distance(outside[one], outside[other])
        assert levels(inside[one], inside[other]) == levels(outside[one], outside[other])
        kinds.append(distance(inside[one], inside[other]))
    assert (kinds.count("same switch"), kinds.count("other node")) == (4, 24)
    assert [len(way.switches) for way in inside] == [2] * 8
    assert [found.cells[way.node].node for way in inside if way.node is not None] == [way.node for way in outside]


def test_the_guest_sees_the_gpus_of_an_hgx_at_these_addresses() -> None:
    _, _, found = of_case("topology-mirror")
    seen = {str(device.source): str(address) for device, address in found.guest_addresses().items()}
    assert seen == {
        "0000:07:00.0": "0000:fc:00.0",
        "0000:0f:00.0": "0000:ff:00.0",
        "0000:47:00.0": "0000:f3:00.0",
        "0000:4e:00.0": "0000:f6:00.0",
        "0000:87:00.0": "0000:ea:00.0",
        "0000:90:00.0": "0000:ed:00.0",
        "0000:b7:00.0": "0000:e1:00.0",
        "0000:bd:00.0": "0000:e4:00.0",
    }


def test_a_card_that_is_not_where_the_topology_would_have_it_says_why() -> None:
    def misplaced(name: str) -> list[str | None]:
        return [seat.misplaced for seat in of_case(name)[2].seats]

    unknown = "is on a NUMA node that the host's firmware does not tell"
    assert misplaced("topology-numa-unknown") == [f"0000:01:00.0 {unknown}: it is on bus 0, in no NUMA cell", None]
    assert misplaced("topology-numa-elsewhere") == [
        None,
        "0000:e1:00.0 is on NUMA node 1, and the guest's CPUs are on 0: it is on bus 0, in no NUMA cell",
    ]
    behind = "it is behind its switches, and in no NUMA cell"
    assert misplaced("topology-mirror-unknown")[:2] == [f"0000:0{n}:00.0 {unknown}: {behind}" for n in (1, 4)]


def test_two_cards_of_a_unit_are_behind_one_switch_though_their_node_is_not_known() -> None:
    _, _, found = of_case("topology-mirror-unknown")
    alone, one, other = in_guest(found)
    assert (distance(one, other), distance(alone, one)) == ("same switch", "same root")


@pytest.mark.parametrize("topology", ["numa", "mirror"])
def test_a_machine_of_one_node_need_not_say_it(topology: str, tmp_path: Path) -> None:
    functions = (
        bridge("0000:00:01.0", "8086:1901", path="pci0000:00", group=1),
        *card("0000:01:00", GPU, path="pci0000:00/0000:00:01.0", group=2),
    )
    found = of_machine(tmp_path, functions, "0000:01:00.0", topology=topology, nodes=1)
    assert [(way.node, seat.misplaced) for way, seat in zip(in_guest(found), found.seats, strict=True)] == [(0, None)]


def test_virtual_functions_of_one_card_are_behind_its_switch(tmp_path: Path) -> None:
    path = "pci0000:40/0000:40:01.0/0000:41:00.0/0000:42:00.0"
    functions = tuple(
        Function(address=f"0000:43:00.{number}", id=GPU[0], pci_class=0x030200, path=path, driver="vfio-pci",
                 group=number, numa=1, physfn="0000:43:00.0" if number else None)
        for number in range(3)
    )  # fmt: skip
    found = of_machine(tmp_path, functions, "0000:43:00.1,0000:43:00.2")
    one, other = in_guest(found)
    assert (distance(one, other), one.node, len({seat.bus for seat in found.seats})) == ("same switch", 0, 2)


def test_a_mediated_device_is_where_its_parent_is(tmp_path: Path) -> None:
    compose(tmp_path, card("0000:e1:00", GPU, path="pci0000:e0/0000:e0:01.1", group=1, numa=1))
    parent = tmp_path / "devices/pci0000:e0/0000:e0:01.1/0000:e1:00.0"
    (parent / VGPU / "mdev_type").mkdir(parents=True)
    (parent / VGPU / "mdev_type/name").write_text("GRID T4-1Q\n")
    (tmp_path / "bus/mdev/devices").mkdir(parents=True)
    (tmp_path / "bus/mdev/devices" / VGPU).symlink_to(f"../../../devices/pci0000:e0/0000:e0:01.1/0000:e1:00.0/{VGPU}")
    vm = tmp_path / "vm.yaml"
    annotations = "{name: vm, annotations: {gpu-launcher.dev/topology: numa}}"
    vm.write_text(vmi_text(gpus=[("vgpu", "nvidia.com/GRID_T4-1Q")]).replace("{name: vm}", annotations))
    vmi, host = read_manifest(vm), read_host(tmp_path)
    cards = cards_of(vmi, {"MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q": VGPU}, host)
    found = laid_out(guest_of(vmi), cards, host, Facts(), None)
    assert ([cell.node for cell in found.cells], in_guest(found)[0].node) == ([1], 0)
