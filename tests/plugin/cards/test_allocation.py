import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from plugin.allocation import Allocation, allocate, grounds, hold, pick
from plugin.cards.config import Config, Groups, Rule
from plugin.cards.inventory import Device
from plugin.cards.names import PCIIDs
from plugin.cards.nodes import read_nodes
from plugin.node.snapshot import Snapshot
from program.errors import Refusal
from tests.compose import RTX_3090 as RTX_3090_IDS
from tests.compose import Function, card, compose
from tests.conftest import Machine
from tests.kernel import bind, make_nodes, mediated_device, platform_device
from tests.snapshots import snapshot_of

GPU_2060 = "0000:01:00.0"
RTX_3090 = "nvidia.com/GA102_GEFORCE_RTX_3090"


@pytest.fixture
def give(pci_ids: PCIIDs) -> Callable[..., Allocation]:
    def give(sys: Path, dev: Path, resource: str, *device_ids: str, config: Config | None = None) -> Allocation:
        nodes = read_nodes(dev)
        snapshot = snapshot_of(sys, pci_ids, config, nodes=nodes)
        devices = pick(snapshot, device_ids, resource)
        allocation = allocate(snapshot, resource, devices, map(snapshot.nodes_of, devices))
        assert is_as_seen(sys, dev, snapshot, devices)
        return allocation

    return give


Give = Callable[..., Allocation]


def is_as_seen(sys: Path, dev: Path, snapshot: Snapshot, devices: Iterable[Device]) -> bool:
    return hold(sys, [grounds(sys, dev, device, snapshot.nodes_of(device)) for device in devices])


def paths(allocation: Allocation) -> list[str]:
    return list(allocation.nodes)


def test_one_address_per_card_sorted_and_the_nodes_of_their_groups(
    give: Give, machine: Machine, tmp_path: Path
) -> None:
    sys = machine("two-rtx-3090")
    answer = give(sys, make_nodes(sys, tmp_path / "dev"), RTX_3090, "0000:e1:00.0", "0000:01:00.0")
    assert answer.env == {"PCI_RESOURCE_NVIDIA_COM_GA102_GEFORCE_RTX_3090": "0000:01:00.0,0000:e1:00.0"}
    assert paths(answer) == ["/dev/vfio/vfio", "/dev/vfio/11", "/dev/vfio/71"]


def test_with_iommufd_each_function_of_the_group_has_its_own_node_too(
    give: Give, copied_machine: Machine, tmp_path: Path
) -> None:
    sys = copied_machine("two-rtx-3090")
    answer = give(sys, make_nodes(sys, tmp_path / "dev", cdevs=True), RTX_3090, "0000:e1:00.0")
    assert paths(answer) == [
        *("/dev/vfio/vfio", "/dev/vfio/71"),
        *("/dev/vfio/devices/vfio2", "/dev/vfio/devices/vfio3", "/dev/iommu"),
    ]


def test_a_host_without_group_nodes_gives_the_functions_nodes_alone(
    give: Give, copied_machine: Machine, tmp_path: Path
) -> None:
    sys = copied_machine("two-rtx-3090")
    dev = make_nodes(sys, tmp_path / "dev", cdevs=True)
    for name in ("vfio", "11", "71"):
        (dev / "vfio" / name).unlink()
    answer = give(sys, dev, RTX_3090, "0000:01:00.0")
    assert paths(answer) == ["/dev/vfio/devices/vfio0", "/dev/vfio/devices/vfio1", "/dev/iommu"]


def test_cards_of_one_group_are_one_address_and_the_nodes_of_all(
    give: Give, copied_machine: Machine, tmp_path: Path
) -> None:
    sys = copied_machine("two-gpus-one-group")
    config = Config(offer=(Rule(vendor="10de", resource="nvidia.com/pair"),), groups=Groups.TOGETHER)
    dev = make_nodes(sys, tmp_path / "dev", cdevs=True)
    answer = give(sys, dev, "nvidia.com/pair", "0000:01:00.0", config=config)
    assert answer.env == {"PCI_RESOURCE_NVIDIA_COM_PAIR": "0000:01:00.0"}
    assert paths(answer) == [
        *("/dev/vfio/vfio", "/dev/vfio/1"),
        *(f"/dev/vfio/devices/vfio{number}" for number in range(6)),
        "/dev/iommu",
    ]
    with pytest.raises(Refusal, match=r"0000:02:00\.0: is not a device of"):
        give(sys, dev, "nvidia.com/pair", "0000:01:00.0", "0000:02:00.0", config=config)


def test_a_companion_comes_by_its_nodes_and_not_by_its_address(
    give: Give, copied_machine: Machine, tmp_path: Path
) -> None:
    sys = copied_machine("two-rtx-3090")
    answer = give(sys, make_nodes(sys, tmp_path / "dev", cdevs=True), RTX_3090, "0000:01:00.0")
    assert list(answer.env.values()) == ["0000:01:00.0"]
    assert {"/dev/vfio/11", "/dev/vfio/devices/vfio0", "/dev/vfio/devices/vfio1"} <= set(paths(answer))


def test_where_functions_have_nodes_one_that_has_none_is_refused_by_name(
    give: Give, copied_machine: Machine, tmp_path: Path
) -> None:
    sys = copied_machine("two-rtx-3090")
    dev = make_nodes(sys, tmp_path / "dev", cdevs=True)
    shutil.rmtree(sys / "bus/pci/devices/0000:01:00.1/vfio-dev")
    with pytest.raises(Refusal, match=r"its node in /dev/vfio/devices of 0000:01:00\.1 does not exist"):
        give(sys, dev, RTX_3090, "0000:01:00.0")


def test_an_iommufd_without_nodes_of_functions_is_no_way_into_vfio(
    give: Give, machine: Machine, tmp_path: Path
) -> None:
    sys = machine("two-rtx-3090")
    dev = make_nodes(sys, tmp_path / "dev")
    (dev / "iommu").touch()
    assert paths(give(sys, dev, RTX_3090, "0000:01:00.0")) == ["/dev/vfio/vfio", "/dev/vfio/11"]


MDEV = "b0c9d7f4-8d30-4d0f-9d6c-0a4d1c2f9f10"


@pytest.mark.parametrize("cdevs", [False, True])
def test_a_mediated_device_has_its_own_variable_and_its_groups_node(
    give: Give, copied_machine: Machine, tmp_path: Path, cdevs: bool
) -> None:
    sys = copied_machine("rtx-2060")
    mediated_device(sys, GPU_2060, MDEV, "GRID T4-1Q", group=40)
    dev = make_nodes(sys, tmp_path / "dev", cdevs=cdevs)
    (dev / "vfio/40").touch()
    if cdevs:
        (sys / "bus/mdev/devices" / MDEV / "vfio-dev/vfio9").mkdir(parents=True)
        (dev / "vfio/devices/vfio9").touch()
    answer = give(sys, dev, "nvidia.com/GRID_T4-1Q", MDEV)
    assert answer.env == {"MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q": MDEV}
    of_its_own = ["/dev/vfio/devices/vfio9", "/dev/iommu"] if cdevs else []
    assert paths(answer) == ["/dev/vfio/vfio", "/dev/vfio/40", *of_its_own]
    unknown = MDEV.replace("b", "c")
    with pytest.raises(Refusal, match=f"{unknown}: is not a device of nvidia.com/GRID_T4-1Q on this node"):
        give(sys, dev, "nvidia.com/GRID_T4-1Q", MDEV, unknown)


def test_a_mediated_device_that_is_removed_is_noticed(copied_machine: Machine, tmp_path: Path, pci_ids: PCIIDs) -> None:
    sys = copied_machine("rtx-2060")
    mediated_device(sys, GPU_2060, MDEV, "GRID T4-1Q", group=40)
    snapshot = snapshot_of(sys, pci_ids)
    devices = pick(snapshot, [MDEV])
    assert is_as_seen(sys, tmp_path, snapshot, devices)
    (sys / "bus/mdev/devices" / MDEV).unlink()
    assert not is_as_seen(sys, tmp_path, snapshot, devices)


def test_two_devices_of_one_request_share_what_they_share(give: Give, copied_machine: Machine, tmp_path: Path) -> None:
    sys = copied_machine("two-rtx-3090")
    answer = give(sys, make_nodes(sys, tmp_path / "dev", cdevs=True), RTX_3090, "0000:01:00.0", "0000:e1:00.0")
    assert len(paths(answer)) == len(set(paths(answer))) == 2 + 2 + 4


def test_the_node_is_the_groups_of_this_moment(give: Give, tmp_path: Path) -> None:
    """Group numbers change with every boot (sriov-network-device-plugin's issue 451)."""
    for group in (5, 10):
        sys, dev = tmp_path / f"sys{group}", tmp_path / f"dev{group}"
        compose(sys, card("0000:01:00", RTX_3090_IDS, path="pci0000:00/0000:00:01.0", group=group))
        assert paths(give(sys, make_nodes(sys, dev), RTX_3090, "0000:01:00.0"))[1] == f"/dev/vfio/{group}"


@pytest.mark.parametrize(
    ("device_id", "problem"),
    [
        ("0000:ff:00.0", "0000:ff:00.0: is not a device of nvidia.com/GA102_GEFORCE_RTX_3090 on this node"),
        ("0000:01:00.1", "0000:01:00.1: is not a device of"),
        ("71", "71: is not a device of"),
    ],
)
def test_an_unknown_device_is_refused_by_name(
    give: Give, machine: Machine, tmp_path: Path, device_id: str, problem: str
) -> None:
    sys = machine("two-rtx-3090")
    with pytest.raises(Refusal) as error:
        give(sys, make_nodes(sys, tmp_path / "dev"), RTX_3090, "0000:01:00.0", device_id)
    assert problem in str(error.value)


def test_who_names_no_resource_may_have_devices_of_any(machine: Machine, pci_ids: PCIIDs) -> None:
    config = Config(offer=(Rule(address="0000:e1:00.0", resource="example.com/other"),))
    snapshot = snapshot_of(machine("two-rtx-3090"), pci_ids, config)
    devices = pick(snapshot, ["0000:e1:00.0", "0000:01:00.0"])
    assert [(device.id, device.resource) for device in devices] == [
        ("0000:01:00.0", RTX_3090),
        ("0000:e1:00.0", "example.com/other"),
    ]
    with pytest.raises(Refusal, match=r"0000:01:00\.1: is not a device of the plugin on this node"):
        pick(snapshot, ["0000:01:00.1"])


def test_a_device_of_another_resource_is_refused(give: Give, machine: Machine, tmp_path: Path) -> None:
    sys = machine("two-rtx-3090")
    with pytest.raises(Refusal, match=r"is not a device of nvidia\.com/OTHER"):
        give(sys, make_nodes(sys, tmp_path / "dev"), "nvidia.com/OTHER", "0000:01:00.0")


def test_a_card_that_is_not_viable_is_refused_with_the_offender(
    give: Give, copied_machine: Machine, tmp_path: Path
) -> None:
    sys = copied_machine("two-rtx-3090")
    dev = make_nodes(sys, tmp_path / "dev")
    bind(sys, "0000:01:00.1", "snd_hda_intel")
    with pytest.raises(Refusal, match=r"cannot be handed out: it is in group 11, which is not viable: 0000:01:00.1"):
        give(sys, dev, RTX_3090, "0000:01:00.0")


@pytest.mark.parametrize("missing", ["vfio/11", "vfio/devices/vfio1"])
def test_a_card_without_one_of_its_nodes_is_refused_by_the_nodes_name(
    give: Give, copied_machine: Machine, tmp_path: Path, missing: str
) -> None:
    sys = copied_machine("two-rtx-3090")
    dev = make_nodes(sys, tmp_path / "dev", cdevs=True)
    (dev / missing).unlink()
    with pytest.raises(Refusal, match=f"has lost .*/dev/{missing}"):
        give(sys, dev, RTX_3090, "0000:01:00.0")


def test_a_host_without_vfio_says_what_to_load(give: Give, machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"no way into VFIO.*load the modules vfio_iommu_type1 and vfio_pci"):
        give(machine("two-rtx-3090"), tmp_path, RTX_3090, "0000:01:00.0")


CHANGES: dict[str, Callable[[Path, Path], object]] = {
    "the companion was rebound": lambda sys, dev: bind(sys, "0000:01:00.1", "snd_hda_intel"),
    "the companion lost its driver": lambda sys, dev: bind(sys, "0000:01:00.1", None),
    "the group has a member more": lambda sys, dev: (sys / "kernel/iommu_groups/11/devices/0000:02:00.0").symlink_to(
        "nowhere"
    ),
    "the group has a member more that is not on PCI": lambda sys, dev: platform_device(sys, 11, "INTC1055:00", None),
    "the group has another number": lambda sys, dev: (sys / "kernel/iommu_groups/11").rename(
        sys / "kernel/iommu_groups/12"
    ),
    "the group's node is gone": lambda sys, dev: (dev / "vfio/11").unlink(),
    "a function's node is gone": lambda sys, dev: (dev / "vfio/devices/vfio1").unlink(),
    "a function has another node": lambda sys, dev: (sys / "bus/pci/devices/0000:01:00.1/vfio-dev/vfio1").rename(
        sys / "bus/pci/devices/0000:01:00.1/vfio-dev/vfio9"
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_after_the_look_is_noticed(
    copied_machine: Machine, tmp_path: Path, pci_ids: PCIIDs, change: str
) -> None:
    sys = copied_machine("two-rtx-3090")
    dev = make_nodes(sys, tmp_path / "dev", cdevs=True)
    nodes = read_nodes(dev)
    snapshot = snapshot_of(sys, pci_ids, nodes=nodes)
    devices = pick(snapshot, ["0000:01:00.0"])
    seen = [grounds(sys, dev, device, snapshot.nodes_of(device)) for device in devices]
    assert hold(sys, seen)
    CHANGES[change](sys, dev)
    assert not hold(sys, seen)


def test_a_virtual_function_whose_physical_one_was_given_to_vfio_is_noticed(
    copied_machine: Machine, tmp_path: Path, pci_ids: PCIIDs
) -> None:
    sys = copied_machine("two-cards-nested-vfio")
    bind(sys, "0000:02:00.1", "vfio-pci")
    config = Config(offer=(Rule(address="0000:02:00.1", resource="example.com/vf"),))
    snapshot = snapshot_of(sys, pci_ids, config)
    devices = pick(snapshot, ["0000:02:00.1"])
    assert is_as_seen(sys, tmp_path, snapshot, devices)
    bind(sys, "0000:02:00.0", "vfio-pci")
    assert not is_as_seen(sys, tmp_path, snapshot, devices)


def test_a_virtual_function_outlives_its_physical_ones_driver(
    copied_machine: Machine, tmp_path: Path, pci_ids: PCIIDs
) -> None:
    """The kernel says "driver left SR-IOV enabled after remove", and leaves them."""
    sys = copied_machine("two-cards-nested-vfio")
    bind(sys, "0000:02:00.1", "vfio-pci")
    bind(sys, "0000:02:00.0", None)
    config = Config(offer=(Rule(address="0000:02:00.1", resource="example.com/vf"),))
    snapshot = snapshot_of(sys, pci_ids, config)
    assert is_as_seen(sys, tmp_path, snapshot, pick(snapshot, ["0000:02:00.1"]))


@pytest.mark.parametrize("driver", [None, "vfio-platform"])
def test_a_member_that_is_not_on_pci_and_gets_another_driver_is_noticed(
    copied_machine: Machine, tmp_path: Path, pci_ids: PCIIDs, driver: str | None
) -> None:
    sys = copied_machine("two-rtx-3090")
    platform_device(sys, 11, "INTC1055:00", driver)
    nodes = read_nodes(make_nodes(sys, tmp_path / "dev"))
    snapshot = snapshot_of(sys, pci_ids, nodes=nodes)
    devices = pick(snapshot, ["0000:01:00.0"])
    assert is_as_seen(sys, tmp_path / "dev", snapshot, devices)
    platform_device(sys, 11, "INTC1055:00", "intel-lpss")
    assert not is_as_seen(sys, tmp_path / "dev", snapshot, devices)


def grace(sys: Path) -> None:
    """Two GB200s and the extended memory that belongs to both."""
    compose(
        sys,
        [
            Function(
                address=f"000{domain}:01:00.0",
                id="10de:2941",
                pci_class=0x030200,
                path=f"pci000{domain}:00/000{domain}:00:00.0",
                driver="nvgrace_gpu_vfio_pci",
                group=domain,
                numa=0,
            )
            for domain in (8, 9)
        ],
    )
    egm = sys / "class/egm/egm4"
    egm.mkdir(parents=True)
    (egm / "gpu_devices").write_text("0008:01:00.0 0009:01:00.0\n")


GB200 = "nvidia.com/2941"  # newer than the pci.ids of the tests


def test_graces_extended_memory_goes_only_to_who_has_all_its_gpus(give: Give, tmp_path: Path) -> None:
    grace(tmp_path / "sys")
    dev = make_nodes(tmp_path / "sys", tmp_path / "dev")
    (dev / "egm4").touch()
    both = give(tmp_path / "sys", dev, GB200, "0008:01:00.0", "0009:01:00.0")
    assert paths(both) == ["/dev/vfio/vfio", "/dev/vfio/8", "/dev/vfio/9", "/dev/egm4"]
    assert "/dev/egm4" not in paths(give(tmp_path / "sys", dev, GB200, "0008:01:00.0"))


def test_each_extended_memory_goes_with_its_own_gpus(give: Give, tmp_path: Path) -> None:
    grace(tmp_path / "sys")
    other = tmp_path / "sys/class/egm/egm5"
    other.mkdir()
    (other / "gpu_devices").write_text("0018:01:00.0 0019:01:00.0\n")
    dev = make_nodes(tmp_path / "sys", tmp_path / "dev")
    for name in ("egm4", "egm5"):
        (dev / name).touch()
    both = give(tmp_path / "sys", dev, GB200, "0008:01:00.0", "0009:01:00.0")
    assert paths(both) == ["/dev/vfio/vfio", "/dev/vfio/8", "/dev/vfio/9", "/dev/egm4"]


@pytest.mark.parametrize("gpus", [b"nonsense\n", b"\xff", b"", None])
def test_an_extended_memory_that_cannot_be_read_stays_behind_and_keeps_no_gpu_back(
    give: Give, tmp_path: Path, gpus: bytes | None
) -> None:
    grace(tmp_path / "sys")
    path = tmp_path / "sys/class/egm/egm4/gpu_devices"
    path.unlink() if gpus is None else path.write_bytes(gpus)
    dev = make_nodes(tmp_path / "sys", tmp_path / "dev")
    (dev / "egm4").touch()
    both = give(tmp_path / "sys", dev, GB200, "0008:01:00.0", "0009:01:00.0")
    assert paths(both) == ["/dev/vfio/vfio", "/dev/vfio/8", "/dev/vfio/9"]


def test_without_its_node_the_extended_memory_stays_behind(give: Give, tmp_path: Path) -> None:
    grace(tmp_path / "sys")
    dev = make_nodes(tmp_path / "sys", tmp_path / "dev")
    both = give(tmp_path / "sys", dev, GB200, "0008:01:00.0", "0009:01:00.0")
    assert paths(both) == ["/dev/vfio/vfio", "/dev/vfio/8", "/dev/vfio/9"]


def test_each_containers_answer_is_its_own(machine: Machine, tmp_path: Path, pci_ids: PCIIDs) -> None:
    """NVIDIA's plugin lists the first container's devices for the second, too."""
    sys = machine("two-rtx-3090")
    nodes = read_nodes(make_nodes(sys, tmp_path / "dev"))
    snapshot = snapshot_of(sys, pci_ids, nodes=nodes)
    before = replace(snapshot)
    for device_id in ("0000:01:00.0", "0000:e1:00.0"):
        devices = pick(snapshot, [device_id])
        answer = allocate(snapshot, RTX_3090, devices, map(snapshot.nodes_of, devices))
        assert list(answer.env.values()) == [device_id]
    assert snapshot == before
