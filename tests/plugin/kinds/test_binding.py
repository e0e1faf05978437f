"""Which writes bind a card, and what is refused before the first one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plugin.cards.config import Config, Rule
from plugin.kinds.card import Plan
from program.errors import Refusal
from tests.compose import RTX_2060, Function, card, desktop
from tests.kernel import load, part, platform_device, process, vfio_group
from tests.plugin.kinds.bound import BOUND, DAILY, GPU, OTHER, Node, addresses, lines, rtx, two_cards


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A desktop with one card, on the drivers of daily use."""
    return Node(tmp_path, rtx())


# What is written.


@pytest.mark.parametrize("named", [[GPU], ["0000:01:00.2"], ["0000:01:00.3", GPU, GPU]])
def test_any_function_of_a_card_names_the_whole_card(node: Node, named: list[str]) -> None:
    assert lines(node.to_bind(*named)) == BOUND


def test_the_highest_function_goes_first_and_the_gpu_last(tmp_path: Path) -> None:
    audio_first = (
        Function(address=GPU, id="10de:10f9", pci_class=0x040300, path="pci0000:00", driver="snd_hda_intel", group=1),
        Function(address="0000:01:00.1", id="10de:1f08", pci_class=0x030000, path="pci0000:00", group=1),
    )
    node = Node(tmp_path, desktop(audio_first))
    assert addresses(node.to_bind(GPU)) == [GPU, "0000:01:00.1"]


def test_what_vfio_has_is_not_written_to(tmp_path: Path) -> None:
    node = Node(tmp_path, rtx("vfio-pci", "snd_hda_intel", "nvgrace_gpu_vfio_pci", None))
    assert lines(node.to_bind(GPU)) == (
        "echo vfio-pci > /sys/bus/pci/devices/0000:01:00.3/driver_override",
        "echo 0000:01:00.3 > /sys/bus/pci/drivers_probe",
        "echo vfio-pci > /sys/bus/pci/devices/0000:01:00.1/driver_override",
        "echo 0000:01:00.1 > /sys/bus/pci/devices/0000:01:00.1/driver/unbind",
        "echo 0000:01:00.1 > /sys/bus/pci/drivers_probe",
    )


def test_a_card_that_is_bound_is_left_alone_even_while_a_guest_has_it(node: Node) -> None:
    node.carry_out(node.to_bind(GPU))
    vfio_group(node.sys, "1")
    process(node.proc, 4711, "qemu", "/dev/vfio/1")
    node.write(GPU, "boot_vga", "1")
    assert node.to_bind(GPU) == Plan(())


def test_a_card_that_is_bound_and_shares_its_group_with_the_nodes_own_is_refused(node: Node) -> None:
    node.carry_out(node.to_bind(GPU))
    stranger(node)
    with pytest.raises(
        Refusal, match=r"cannot bind 0000:01:00\.0: it is in group 1, which is not viable: 0000:00:1f\.3 "
    ):
        node.to_bind(GPU)
    assert [problem.subject for problem in node.to_bind_all().skipped] == [GPU]


def test_a_function_goes_to_the_variant_that_knows_it(node: Node) -> None:
    node.roots.modules.mkdir()
    (node.roots.modules / "modules.alias").write_text(
        "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n"
        "alias vfio_pci:v000010DEd00001F08sv*sd*bc*sc*i* some_gpu_vfio_pci\n"
    )
    with pytest.raises(Refusal, match="its driver some-gpu-vfio-pci is not loaded; modprobe some-gpu-vfio-pci"):
        node.to_bind(GPU)
    load(node.sys, "some_gpu_vfio_pci")
    node.carry_out(node.to_bind(GPU))
    assert node.drivers() == ["some_gpu_vfio_pci", "vfio-pci", "vfio-pci", "vfio-pci"]


def test_bridges_and_those_without_a_driver_of_their_own_stay_in_the_group_as_they_are(tmp_path: Path) -> None:
    stub = Function(address=OTHER, id="8086:1533", pci_class=0x020000, path="pci0000:00", driver="pci-stub", group=1)
    idle = Function(address="0000:03:00.0", id="8086:1533", pci_class=0x020000, path="pci0000:00", group=1)
    node = Node(
        tmp_path,
        desktop((*card("0000:01:00", RTX_2060, path="pci0000:00", group=1, drivers=DAILY), stub, idle)),
    )
    assert lines(node.to_bind(GPU)) == BOUND


def test_two_cards_of_one_group_are_bound_together(tmp_path: Path) -> None:
    node = Node(tmp_path, two_cards(groups=(1, 1)))
    with pytest.raises(Refusal, match=r"it is in group 1, which is not viable: 0000:02:00\.0 \(VGA\) is bound to nouv"):
        node.to_bind(GPU)
    assert addresses(node.to_bind(OTHER, GPU)) == [
        *(f"0000:01:00.{number}" for number in (3, 2, 1, 0)),
        *(f"0000:02:00.{number}" for number in (1, 0)),
    ]


# What is refused, before the first write.


def boot_vga(node: Node) -> None:
    node.write(GPU, "boot_vga", "1")


def virtual_functions(node: Node) -> None:
    node.write(GPU, "sriov_numvfs", "3")


def stranger(node: Node) -> None:
    link = node.sys / "kernel/iommu_groups/1/devices/0000:00:1f.3"
    link.symlink_to("../../../../devices/pci0000:00/0000:00:1f.3")


def stranger_not_on_pci(node: Node) -> None:
    platform_device(node.sys, 1, "INTC1055:00", "intel-lpss")


def unreadable(node: Node) -> None:
    node.write("0000:01:00.1", "uevent", "?")


def noiommu(node: Node) -> None:
    (node.sys / "kernel/iommu_groups/1/name").write_text("vfio-noiommu\n")


def no_vfio(node: Node) -> None:
    (node.sys / "bus/pci/drivers/vfio-pci").rmdir()


def a_sound_server(node: Node) -> None:
    part(node.sys, "0000:01:00.1", "sound/card1/controlC1", "sound", "snd/controlC1")
    process(node.proc, 812, "pipewire", "/dev/snd/controlC1")


def a_framebuffer(node: Node) -> None:
    part(node.sys, GPU, "graphics/fb0", "graphics", "fb0")


def mediated_device(node: Node) -> None:
    uuid = "c0b26072-dd1b-4340-84fe-bf338c510818"
    place = (node.sys / "bus/pci/devices" / GPU).resolve() / uuid
    (place / "mdev_type").mkdir(parents=True)
    (place / "mdev_type/name").write_text("GRID T4-1Q\n")
    (node.sys / "bus/mdev/devices").mkdir(parents=True)
    (node.sys / "bus/mdev/devices" / uuid).symlink_to(f"../../../{place.relative_to(node.sys)}")


OWN: dict[Callable[[Node], None], str] = {
    boot_vga: "it is the boot VGA, the node's own screen; let the firmware put that on another card",
    virtual_functions: "it is in parts: its 3 virtual functions are what guests get; give guests those",
    stranger: "it is in group 1, which is not viable: 0000:00:1f.3 (audio) is bound to snd_hda_intel; it is the node's",
    stranger_not_on_pci: "it is in group 1, which is not viable: INTC1055:00 (not on PCI) is bound to intel-lpss; free",
    a_framebuffer: "it is in use: the console may be on framebuffer fb0",
    mediated_device: "it is in parts: its 1 mediated device is what guests get; give guests those",
}
PASSING: dict[Callable[[Node], None], str] = {
    unreadable: "its IOMMU group 1 has 0000:01:00.1, which cannot be read",
    noiommu: "it is in no IOMMU group: no IOMMU is on; gpu-plugin doctor says what turns it on",
    no_vfio: "its driver vfio-pci is not loaded; modprobe vfio-pci",
    a_sound_server: "0000:01:00.1 is in use: /dev/snd/controlC1 is open in pipewire (pid 812); end that first",
}


@pytest.mark.parametrize("breaks", [*OWN, *PASSING])
def test_a_card_that_cannot_be_bound_is_refused_with_the_reason(node: Node, breaks: Callable[[Node], None]) -> None:
    breaks(node)
    with pytest.raises(Refusal) as refused:
        node.to_bind(GPU)
    assert str(refused.value).startswith(f"cannot bind 0000:01:00.0: {(OWN | PASSING)[breaks]}")


def test_without_an_iommu_nothing_is_bound(tmp_path: Path) -> None:
    node = Node(
        tmp_path, desktop(card("0000:01:00", RTX_2060, path="pci0000:00", group=None, drivers=DAILY), iommu=False)
    )
    with pytest.raises(Refusal, match=r"cannot bind 0000:01:00\.0: it is in no IOMMU group: no IOMMU is on"):
        node.to_bind(GPU)


def test_a_bridge_is_refused(node: Node) -> None:
    with pytest.raises(Refusal, match=r"0000:00:01\.0: it is a PCI bridge, .*; name the devices behind it"):
        node.to_bind("0000:00:01.0")


def test_a_mounted_nvme_is_refused(tmp_path: Path) -> None:
    node = Node(
        tmp_path, [Function(address=GPU, id="144d:a808", pci_class=0x010802, path="pci0000:00", driver="nvme", group=1)]
    )
    part(node.sys, GPU, "nvme/nvme0/nvme0n1/nvme0n1p1", "block", "nvme0n1p1", dev="259:1")
    process(node.proc, 1, "systemd", mounts=["1 0 259:1 / /var rw - ext4 /dev/nvme0n1p1 rw"])
    with pytest.raises(
        Refusal, match=r"0000:01:00\.0: it is in use: /dev/nvme0n1p1 is mounted on /var; end that first"
    ):
        node.to_bind(GPU)


def test_a_vgpu_of_nvidias_driver_is_refused(tmp_path: Path) -> None:
    functions = (
        Function(address=f"0000:01:00.{number}", id="10de:26b9", pci_class=0x030200, path="pci0000:00",
                 driver="nvidia", group=number, physfn=GPU if number else None)
        for number in (0, 4)
    )  # fmt: skip
    node = Node(tmp_path, functions)
    with pytest.raises(Refusal, match=r"0000:01:00\.4: it is a virtual function of NVIDIA's driver"):
        node.to_bind("0000:01:00.4")


def test_an_address_that_is_not_there_is_refused(node: Node) -> None:
    with pytest.raises(Refusal, match=r"0000:09:00\.0: this node has no such PCI function; lspci -D lists"):
        node.to_bind("0000:09:00.0", GPU)
    unreadable(node)
    with pytest.raises(Refusal, match=r"0000:01:00\.1: this node has no such PCI function, bus/pci/.*holds '\?'"):
        node.to_bind("0000:01:00.1")


def test_every_card_that_cannot_be_bound_is_named_once(tmp_path: Path) -> None:
    node = Node(tmp_path, two_cards())
    no_vfio(node)
    with pytest.raises(Refusal, match=r"^cannot bind 0000:01:00\.0, 0000:02:00\.0: its driver vfio-pci [^:]*$"):
        node.to_bind(OTHER, GPU)


# All of them: as an init container it must not fail for what is the node's own.


def test_all_are_the_gpus_that_are_offered_and_what_the_config_fits(tmp_path: Path) -> None:
    bmc = Function(address="0000:04:00.0", id="1a03:2000", pci_class=0x030000, path="pci0000:00", driver="ast", group=9)
    node = Node(tmp_path, (*two_cards(), bmc))
    assert addresses(node.to_bind_all()) == [
        *(f"0000:01:00.{number}" for number in (3, 2, 1, 0)),
        *(f"0000:02:00.{number}" for number in (1, 0)),
    ]
    config = Config(offer=(Rule(device="8086:a36d", resource="example.com/usb"),))
    assert addresses(node.to_bind_all(config))[0] == "0000:00:14.0"


@pytest.mark.parametrize("breaks", OWN)
def test_of_all_the_nodes_own_are_skipped_by_name_and_the_rest_bound(
    tmp_path: Path, breaks: Callable[[Node], None]
) -> None:
    node = Node(tmp_path, two_cards())
    breaks(node)
    plan = node.to_bind_all()
    assert addresses(plan) == ["0000:02:00.1", "0000:02:00.0"]
    (card,) = map(str, plan.skipped)
    assert card.startswith(f"0000:01:00.0: {OWN[breaks]}")


@pytest.mark.parametrize("breaks", PASSING)
def test_of_all_one_that_could_be_bound_later_is_refused(node: Node, breaks: Callable[[Node], None]) -> None:
    breaks(node)
    with pytest.raises(Refusal) as refused:
        node.to_bind_all()
    assert str(refused.value).startswith(f"cannot bind 0000:01:00.0: {PASSING[breaks]}")


def test_of_all_what_shares_a_group_with_the_console_is_skipped_too(tmp_path: Path) -> None:
    node = Node(tmp_path, two_cards(groups=(1, 1)))
    node.write(OTHER, "boot_vga", "1")
    plan = node.to_bind_all()
    assert addresses(plan) == []
    assert str(plan.skipped[0]).startswith(
        "0000:01:00.0: it is in group 1, which is not viable: 0000:02:00.0 (VGA) is "
    )


def test_of_all_the_processors_own_gpu_is_bound_only_where_a_rule_asks_for_it(tmp_path: Path) -> None:
    node = Node(tmp_path, rtx())
    assert "0000:00:02.0" not in addresses(node.to_bind_all())
    assert node.to_bind_all().skipped == ()
    rule = Rule(device="8086:3e92", resource="intel.com/uhd-630")
    assert addresses(node.to_bind_all(Config(offer=(rule,))))[0] == "0000:00:02.0"
    assert addresses(node.to_bind("0000:00:02.0")) == ["0000:00:02.0"]
