"""The picture is read back: what it says, and that nothing is drawn over anything else."""

from collections.abc import Callable, Iterable
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pci.address import PCIAddress
from pci.host import Fault, Function, Host, MediatedDevice
from pci.sysfs.functions import read_host
from plugin.cards.config import Config, Groups, Rule
from plugin.cards.names import PCIIDs
from plugin.changes.users import Assignment
from plugin.pages.picture import picture
from program.problem import one_line
from tests import compose
from tests.conftest import Command, Machine
from tests.pictures import Box, Drawn, assert_nothing_overlaps, read_back, squeezed
from tests.processes import FIXTURES
from tests.snapshots import look_at, snapshot_of

MACHINES = sorted(path.name for path in (FIXTURES / "sysfs").iterdir())
PCI_IDS = ("--pci-ids", FIXTURES / "pci.ids")
RTX = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
BOCHS = Rule(device="1234:1111", resource="example.com/bochs")


def draw_and_check(host: Host, config: Config, pci_ids: PCIIDs, assigned: Iterable[Assignment] | None) -> Drawn:
    """The picture, after a look at it: all devices and reasons are in it, nothing is over anything else."""
    assignments = None if assigned is None else frozenset(assigned)
    snapshot = snapshot_of(host, pci_ids, config, assignments=assignments, sees_pods=assigned is not None)
    svg = picture(snapshot)
    assert svg == picture(snapshot)
    drawn = read_back(svg)
    assert_nothing_overlaps(drawn)
    for device in snapshot.inventory.devices:
        assert device.id in drawn.words
        assert squeezed(str(snapshot.reason(device) or "")) in drawn.words
        assert squeezed(device.resource or "") in drawn.words
    for fault in map(str, snapshot.host.faults):
        assert squeezed(one_line(fault)) in drawn.words
    return drawn


Draw = Callable[..., Drawn]


@pytest.fixture
def draw(pci_ids: PCIIDs) -> Draw:
    def draw(
        host: Path | Host, *rules: Rule, assigned: Iterable[Assignment] | None = None, groups: str = "withhold"
    ) -> Drawn:
        host = read_host(host) if isinstance(host, Path) else host
        return draw_and_check(host, Config(offer=rules, groups=Groups(groups)), pci_ids, assigned)

    return draw


@pytest.mark.parametrize("groups", ["withhold", "together"])
@pytest.mark.parametrize("name", MACHINES)
def test_every_device_of_a_machine_and_its_reason_are_drawn_and_nothing_over_anything(
    draw: Draw, machine: Machine, name: str, groups: str
) -> None:
    draw(machine(name), groups=groups)
    draw(machine(name), BOCHS, assigned=[], groups=groups)


def test_a_card_says_its_state_model_resource_drivers_and_group(draw: Draw, machine: Machine) -> None:
    drawn = draw(machine("rtx-2060"))
    assert drawn.cards() == [
        [
            "0000:00:02.0: withheld (1)",
            "CoffeeLake-S GT2 [UHD Graphics 630]",
            "would be intel.com/COFFEELAKES_GT2_UHD_GRAPHICS_630",
            "on i915",
            "IOMMU group 2",
        ],
        [
            "0000:01:00.0: on offer",
            "TU106 [GeForce RTX 2060 Rev. A]",
            f"as {RTX}",
            ".0 .1 .2 .3 on vfio-pci",
            "IOMMU group 1",
        ],
    ]
    assert drawn.title == "2 devices: 1 on offer, 1 withheld"
    assert "(1)Itistheprocessor'sownGPU,whichnoruleoftheconfigasksfor:isboundtoi915" in drawn.words


def test_an_unhealthy_card_says_which_function_is_on_which_driver(draw: Draw, machine: Machine) -> None:
    drawn = draw(machine("rtx-2060-audio-on-snd-hda-intel"))
    assert drawn.cards()[1][0] == "0000:01:00.0: unhealthy (2)"
    assert ".0 .2 on vfio-pci, .1 on snd_hda_intel, .3 on no driver" in " ".join(drawn.cards()[1])
    assert drawn.title == "2 devices: 1 on offer (1 unhealthy), 1 withheld"


def test_a_card_is_free_only_where_the_kubelet_said_so(draw: Draw, machine: Machine) -> None:
    assert draw(machine("rtx-2060"), assigned=None).cards()[1][0] == "0000:01:00.0: on offer"
    assert draw(machine("rtx-2060"), assigned=[]).cards()[1][0] == "0000:01:00.0: free"


def test_a_card_in_use_names_the_pod_also_where_another_plugin_gave_it_out(draw: Draw, machine: Machine) -> None:
    ours, others = (Assignment("default/vm-1", resource, "0000:01:00.0") for resource in (RTX, "nvidia.com/pgpu"))
    assert draw(machine("rtx-2060"), assigned=[ours]).cards()[1][0] == "0000:01:00.0: in use by pod default/vm-1"
    drawn = draw(machine("rtx-2060"), assigned=[others])
    assert " ".join(drawn.cards()[1][:2]).startswith("0000:01:00.0: unhealthy (2), in use by pod default/vm-1")
    assert squeezed("(2) It is in use by pod default/vm-1, which has it as nvidia.com/pgpu; ") in drawn.words


def test_cards_stand_in_their_numa_node_and_root_complex(draw: Draw, machine: Machine) -> None:
    drawn = draw(machine("hgx-a100-8-gpu"))
    found = {}
    for card, _ in drawn.boxes["card"]:
        frames = [frame.findtext("{*}text") for frame in card.iterancestors("{*}g")]
        found[card.findtext("{*}text", "").split(": ")[0]] = frames
    assert found["0000:47:00.0"] == ["root complex pci0000:40", "NUMA node 1"]
    assert found["0000:c4:00.0"] == ["root complex pci0000:b0", "NUMA node 5"]
    assert len(found) == 15
    ports = [port.findtext("{*}text", "") for port, _ in drawn.boxes["port"]]
    assert sum(port.startswith("switch") for port in ports) == 4


def test_cards_of_one_iommu_group_are_outlined_together(draw: Draw, machine: Machine) -> None:
    drawn = draw(machine("two-gpus-one-group"))
    ((_, outline),) = drawn.boxes["group"]
    within = [card[0].split(":")[2] for card, (_, box) in zip(drawn.cards(), drawn.boxes["card"], strict=True)
              if outline.holds(box)]  # fmt: skip
    assert len(within) == 2
    assert draw(machine("two-rtx-3090")).boxes["group"] == []


def test_cards_offered_together_say_that_they_are_one_device(draw: Draw, machine: Machine) -> None:
    drawn = draw(machine("two-gpus-one-group"), Rule(vendor="10de", resource="a.example/pair"), groups="together")
    assert drawn.title == "2 devices: 1 on offer, 1 withheld"
    assert drawn.cards()[1][:2] == ["0000:01:00.0: on offer", "2 x TU106 [GeForce RTX 2060 Rev. A]"]
    assert drawn.cards()[2][0] == "0000:02:00.0: on offer, one device with 0000:01:00.0"


def test_ports_say_what_they_do_with_requests_between_cards(
    pci_ids: PCIIDs, copied_machine: Machine, request: pytest.FixtureRequest
) -> None:
    """A machine whose four switches redirect, redirect but for ATS, do not, and have a port that sleeps."""
    sys = copied_machine("hgx-a100-8-gpu")
    host, golden = read_host(sys), FIXTURES / "nodes/acs.svg"
    for switch, acs in (("0000:01:00.0", 0x1D), ("0000:41:00.0", 0x5D), ("0000:81:00.0", 0x11), ("0000:b1:00.0", 0x1D)):
        behind = (function.bridges for function in host.functions.values() if not function.is_bridge)
        for port in {port for bridges in behind if switch in map(str, bridges) for port in bridges[2:]}:
            compose.config_space(sys, str(port), acs=acs)
    compose.config_space(sys, "0000:47:00.0", ats=True)
    compose.config_space(sys, "0000:4e:00.0", ats=False)
    compose.look_closely(sys, "0000:b4:10.0", power_state="D3hot")
    svg = picture(look_at(sys, pci_ids))
    drawn = read_back(svg)
    assert_nothing_overlaps(drawn)
    if request.config.getoption("--regenerate"):
        golden.write_text(svg)
    assert svg == golden.read_text()


def test_what_else_is_in_a_cards_group_is_its_neighbour(draw: Draw, tmp_path: Path) -> None:
    nvme = compose.Function(
        address="0000:02:00.0",
        id="144d:a808",
        pci_class=0x010802,
        path="pci0000:00/0000:00:01.1",
        driver="nvme",
        group=1,
    )
    gpu = compose.card("0000:01:00", compose.RTX_2060, path="pci0000:00/0000:00:01.0", group=1)
    compose.compose(tmp_path / "sys", compose.desktop((*gpu, nvme)))
    drawn = draw(tmp_path / "sys")
    assert drawn.cards()[2] == ["0000:02:00.0 (NVMe): neighbour", "on nvme", "IOMMU group 1"]
    assert len(drawn.boxes["group"]) == 1


def virtual_functions(sys: Path, groups: Iterable[int], *others: compose.Function) -> Path:
    """A GPU with virtual functions in these groups, and other functions of the node."""
    path = "pci0000:40/0000:40:01.0"
    gpu = compose.Function(
        address="0000:41:00.0", id="10de:26b9", pci_class=0x030200, path=path, driver="nvidia", group=1
    )
    vfs = [
        compose.Function(address=f"0000:41:{number >> 3:02x}.{number & 7}", id="10de:26b9", pci_class=0x030200,
                         path=path, driver="vfio-pci", group=group, physfn="0000:41:00.0")
        for number, group in enumerate(groups, start=4)
    ]  # fmt: skip
    root_port = compose.bridge("0000:40:01.0", "1022:1483", path="pci0000:40", group=0)
    compose.compose(sys, [root_port, gpu, *vfs, *others])
    return sys


def test_virtual_functions_that_are_alike_share_a_box(draw: Draw, tmp_path: Path) -> None:
    sys = virtual_functions(tmp_path / "sys", range(4, 36))
    drawn = draw(sys, assigned=[Assignment("default/vm-1", "nvidia.com/26b9", "0000:41:00.7")])
    assert [card[0] for card in drawn.cards()] == [
        "0000:41:00.0: withheld (1)",
        "31 virtual functions: free",
        "0000:41:00.7: in use by pod default/vm-1",
    ]
    assert "0000:41:04.3, IOMMU group 35" in drawn.cards()[1]
    assert drawn.title == "33 devices: 32 on offer (31 free, 1 in use), 1 withheld"


def test_virtual_functions_with_neighbours_have_boxes_of_their_own(draw: Draw, tmp_path: Path) -> None:
    others = [
        compose.Function(
            address=f"0000:40:0{group}.0", id="144d:a808", pci_class=0x010802, path="pci0000:40", group=group
        )
        for group in (7, 8)
    ]
    drawn = draw(virtual_functions(tmp_path / "sys", [7, 8], *others))
    assert [card[0] for card in drawn.cards()][-2:] == ["0000:41:00.4: on offer", "0000:41:00.5: on offer"]
    assert len(drawn.boxes["group"]) == 4, "a group has an outline wherever it is"


def test_a_switch_may_have_more_ports_than_its_card_has_lines(draw: Draw, tmp_path: Path) -> None:
    functions: list[compose.Function] = []
    for branch in range(3):
        path = "pci0000:00"
        for level in range(15):
            port = f"0000:{branch * 32 + level:02x}:{branch + 1:02x}.0"
            functions.append(
                compose.bridge(port, "1000:c010" if level else "1022:1483", path=path, group=len(functions))
            )
            path = f"{path}/{port}"
        functions += compose.card(f"0000:{branch * 32 + 31:02x}:00", compose.RTX_3090, path=path, group=len(functions))
    compose.compose(tmp_path / "sys", functions)
    drawn = draw(tmp_path / "sys")
    assert max(box.bottom - box.top for _, box in drawn.boxes["port"]) > 200
    assert len(drawn.boxes["port"]) == 6


def test_sixty_four_cards_stay_apart(draw: Draw, tmp_path: Path) -> None:
    drawn = draw(sixty_four_cards(tmp_path / "sys"))
    assert len(drawn.cards()) == 64
    page = Box.of(drawn.root)
    assert 0.7 < page.right / page.bottom < 3, "it fits a screen"


def sixty_four_cards(sys: Path) -> Path:
    """Eight root complexes on four NUMA nodes, eight cards behind the switch of each."""
    functions: list[compose.Function] = []
    for number in range(8):
        bus, root, numa = number * 32, f"pci0000:{number * 32:02x}", number % 4
        path = root
        for port in (f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0"):
            functions.append(compose.bridge(port, "10b5:9797", path=path, group=len(functions), numa=numa))
            path = f"{path}/{port}"
        for slot in range(8):
            downstream = compose.bridge(f"0000:{bus + 2:02x}:{slot:02x}.0", "10b5:9797", path=path,
                                        group=len(functions), numa=numa)  # fmt: skip
            functions += (downstream, *compose.card(f"0000:{bus + 3 + slot:02x}:00", compose.RTX_3090, numa=numa,
                          path=f"{path}/{downstream.address}", group=len(functions) + 1))  # fmt: skip
    compose.compose(sys, functions)
    return sys


def test_a_node_without_devices_and_what_could_not_be_read_are_drawn_too(draw: Draw) -> None:
    drawn = draw(Host(functions={}, groups={}, noiommu=frozenset(), faults=(Fault("bus/pci", "holds '\x00'"),)))
    assert drawn.title == "This node has no GPU, and no device that the config offers"


# Any node: cards, virtual functions and mediated devices anywhere below bridges of any depth, in any groups.


@st.composite
def hosts(draw: st.DrawFn) -> Host:
    buses: dict[tuple[int, ...], int] = {}
    functions: dict[PCIAddress, Function] = {}
    mdevs: list[MediatedDevice] = []

    def bus(chain: tuple[int, ...]) -> int:
        return buses.setdefault(chain, len(buses))

    for _ in range(draw(st.integers(0, 12))):
        root, *turns = draw(st.lists(st.integers(0, 1), min_size=1, max_size=6))
        chain = [PCIAddress(root, bus((root, *turns[:depth])), turn, 0) for depth, turn in enumerate(turns)]
        for bridge in chain:
            if draw(st.booleans()):
                pci_id = draw(st.sampled_from([0x1000, 0x1001]))
                functions.setdefault(bridge, function(bridge, root, (), pci_class=0x060400, device_id=pci_id))
        slot = draw(st.integers(2, 31))
        group = draw(st.none() | st.integers(0, 5))
        physical = PCIAddress(root, bus((root, *turns)), slot, 0)
        for number in range(draw(st.integers(1, 3))):
            address = PCIAddress(root, physical.bus, slot, number)
            functions[address] = function(
                address, root, tuple(chain),
                pci_class=draw(st.sampled_from([0x030000, 0x040300, 0x068000])),
                vendor_id=draw(st.sampled_from([0x10DE, 0x1002, 0x144D])),
                device_id=draw(st.sampled_from([0x1F08, 0x2204, 0xFFFF])),
                driver=draw(st.sampled_from([None, "vfio-pci", "nouveau", "a-driver-with-" + "a-long-name-" * 5])),
                iommu_group=group, numa_node=draw(st.sampled_from([None, 0, 1])),
                physical_function=physical if number and draw(st.booleans()) else None,
            )  # fmt: skip
        for number in range(draw(st.integers(0, 2))):
            uuid = UUID(int=len(mdevs))
            mdevs.append(MediatedDevice(uuid, draw(st.text(min_size=1, max_size=80)), physical, 100 + number, None))
    members: dict[int, list[PCIAddress]] = {}
    for found in functions.values():
        if found.iommu_group is not None:
            members.setdefault(found.iommu_group, []).append(found.address)
    return Host(
        functions=dict(sorted(functions.items())),
        groups={group: tuple(sorted(members[group])) for group in sorted(members)},
        noiommu=frozenset(),
        faults=(),
        mdevs=tuple(mdevs),
    )


def function(address: PCIAddress, root: int, chain: tuple[PCIAddress, ...], **others: object) -> Function:
    values: dict[str, object] = {
        "address": address, "vendor_id": 0x1022, "device_id": 0, "pci_class": 0, "subsystem_vendor_id": 0,
        "subsystem_device_id": 0, "driver": None, "iommu_group": None, "numa_node": None, "root": f"pci000{root}:00",
        "bridges": chain, "physical_function": None, "vgpu_type": None, "vfio_device": None,
    }  # fmt: skip
    return Function(**{**values, **others})  # type: ignore[arg-type]


@settings(max_examples=60)
@given(host=hosts(), groups=st.sampled_from(Groups), data=st.data())
def test_any_node_can_be_drawn(pci_ids: PCIIDs, host: Host, groups: Groups, data: st.DataObject) -> None:
    devices = st.sampled_from([*map(str, host.functions), "none"])
    assigned = data.draw(
        st.none() | st.sets(st.builds(Assignment, st.just("default/vm"), st.sampled_from([RTX, "a.b/c"]), devices))
    )
    draw_and_check(host, Config(offer=(Rule(mdev_type="x", withhold=True),), groups=groups), pci_ids, assigned)


def test_the_command_writes_the_picture_and_prints_the_table_too(
    gpu_plugin: Command, machine: Machine, tmp_path: Path
) -> None:
    file = tmp_path / "node.svg"
    result = gpu_plugin("inventory", "--svg", file, "--sysfs", machine("rtx-2060"), *PCI_IDS)
    assert (result.returncode, result.stderr) == (0, "")
    assert "OFFERED AS" in result.stdout
    assert read_back(file.read_text()).title == "2 devices: 1 on offer, 1 withheld"


def test_a_file_that_cannot_be_written_is_an_error_of_one_line(
    gpu_plugin: Command, machine: Machine, tmp_path: Path
) -> None:
    result = gpu_plugin("inventory", "--svg", tmp_path / "no/node.svg", "--sysfs", machine("rtx-2060"), *PCI_IDS)
    assert result.stderr == (
        f"gpu-plugin: {tmp_path}/no/node.svg: cannot write the picture: No such file or directory; "
        "expected a file in a directory that can be written\n"
    )
    assert (result.returncode, result.stdout) == (2, "")
