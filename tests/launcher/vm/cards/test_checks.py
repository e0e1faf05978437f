"""Cards against the machine that they are on now: recorded and composed ones, each broken in one thing."""

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.vm.cards.checks import OpenedNodes, in_sysfs, in_the_container, read_nodes
from launcher.vm.cards.guest import GuestCard, whole_cards
from launcher.vm.checks import OWN_MACHINE
from pci.host import Host
from pci.resource import DeviceKind, variable
from pci.sysfs.functions import DEVICES, read_host
from program.finding import Finding
from program.problem import Severity
from tests.conftest import Machine
from tests.kernel import bind, make_nodes, platform_device
from tests.launcher.vms import RTX_2060, RTX_3090, claim, entries

GPU = "0000:01:00.0"
ANEW = "if it is another device than was allocated, since the node was booted with others, delete the pod"


def cards_of(
    host: Host, value: str, resource: str = RTX_2060, kind: DeviceKind = DeviceKind.PCI, *, gpus: bool = True
) -> tuple[GuestCard, ...]:
    named = [(f"gpu{number}", resource) for number, _ in enumerate(value.split(","), start=1)]
    wanted = entries(gpus=named) if gpus else entries(host_devices=named)
    return whole_cards(*claim(wanted, {variable(resource, kind): value}, host), host)


def seen(
    sys: Path, value: str = GPU, resource: str = RTX_2060, kind: DeviceKind = DeviceKind.PCI, *, gpus: bool = True
) -> list[Finding]:
    host = read_host(sys)
    return list(in_sysfs(cards_of(host, value, resource, kind, gpus=gpus), host, sys))


def told(sys: Path, dev: Path, value: str = GPU, *, guest_runs: bool = False, by_iommufd: bool = False) -> list[str]:
    host = read_host(sys)
    cards = cards_of(host, value)
    nodes = read_nodes(dev, cards, host, by_iommufd=by_iommufd)
    return list(map(str, in_the_container(cards, host, nodes, guest_runs=guest_runs)))


def test_a_whole_card_on_vfio_with_its_nodes_is_nothing_to_speak_of(machine: Machine, tmp_path: Path) -> None:
    sys = machine("rtx-2060")
    assert seen(sys) == []
    assert told(sys, make_nodes(sys, tmp_path / "dev")) == []


def test_a_device_that_is_gone_is_named_with_why_the_variable_may_be_old(machine: Machine) -> None:
    (found,) = seen(machine("rtx-2060"), "0000:86:00.0")
    assert found.severity is Severity.ERROR
    assert found.problem[:2] == ("gpu 'gpu1'", "0000:86:00.0 is not in sysfs")
    assert ANEW in found.problem.fix


@pytest.mark.parametrize(("driver", "named"), [("nouveau", "nouveau"), (None, "no driver")])
def test_a_card_on_another_driver_is_said_as_what_is_there_now(
    copied_machine: Machine, driver: str | None, named: str
) -> None:
    sys = copied_machine("rtx-2060")
    bind(sys, GPU, driver)
    (found,) = seen(sys)
    assert found.problem.wrong == f"0000:01:00.0 (VGA, 10de:1f08) is bound to {named}"
    assert found.problem.fix.startswith("bind the whole card to vfio-pci, or, if it is another device")


def test_a_companion_elsewhere_is_the_offender_by_name(machine: Machine) -> None:
    (found,) = seen(machine("rtx-2060-audio-on-snd-hda-intel"))
    _, wrong, fix = found.problem
    assert wrong.endswith("is in group 1, which is not viable: 0000:01:00.1 (audio) is bound to snd_hda_intel")
    assert fix == "bind it to vfio-pci"


def test_a_member_of_the_group_that_is_not_on_pci_is_the_offender_too(copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    platform_device(sys, 1, "INTC1055:00", "intel-gpio")
    (found,) = seen(sys)
    assert "INTC1055:00 (not on PCI) is bound to intel-gpio" in found.problem.wrong


def test_another_card_in_the_group_keeps_it_if_somebody_else_has_that(copied_machine: Machine) -> None:
    sys = copied_machine("two-gpus-one-group")
    bind(sys, "0000:02:00.1", "snd_hda_intel")
    (found,) = seen(sys)
    assert "0000:02:00.1 (audio) is bound to snd_hda_intel" in found.problem.wrong
    host = read_host(sys)
    (found,) = in_sysfs(cards_of(host, GPU), host, sys, OWN_MACHINE)
    assert found.problem.fix == (
        "put the card into another slot, whose root port or switch has ACS, or bind the other card to vfio-pci too: "
        "sudo gpu-plugin bind 0000:02:00.1"
    )


def test_bind_is_no_command_for_a_virtual_function_whose_card_is_on_vfio_itself(copied_machine: Machine) -> None:
    sys, virtual = copied_machine("two-cards-nested-vfio"), "0000:02:00.1"
    for number in (0, 1):
        bind(sys, f"0000:02:00.{number}", "vfio-pci")
    host = read_host(sys)
    (found,) = in_sysfs(cards_of(host, virtual, gpus=False), host, sys, OWN_MACHINE)
    assert found.problem.wrong.endswith("is a virtual function of 0000:02:00.0, which is on vfio-pci itself")
    assert found.problem.fix == f"bind 0000:02:00.0 to its own driver{OWN_MACHINE.or_anew}"


def test_without_an_iommu_no_guest_can_be_given_anything(machine: Machine) -> None:
    (found,) = seen(machine("rtx-2060-without-iommu"))
    assert found.problem.wrong.endswith("is in no IOMMU group: no IOMMU is on")
    assert found.problem.fix.startswith("gpu-plugin doctor says what turns it on")


def test_a_companion_that_fell_off_the_bus_leaves_the_card_not_whole(copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    function = (sys / DEVICES / "0000:01:00.2").resolve()
    (function / "uevent").unlink()
    (found,) = seen(sys)
    assert found.problem.wrong == "0000:01:00.2, on its slot and in its group, cannot be read in sysfs"


def test_a_gpu_of_another_vendor_is_what_was_there_before_and_refused(machine: Machine) -> None:
    """Booted with another device in front, the address is that one's, and it may be another guest's."""
    (found,) = seen(machine("rtx-2060"), resource="amd.com/NAVI_31")
    assert found.severity is Severity.ERROR
    assert found.problem.wrong == "asks for amd.com/NAVI_31, and 0000:01:00.0 (VGA, 10de:1f08) is not of amd.com"
    assert ANEW in found.problem.fix


def test_a_gpu_that_is_none_is_a_warning_and_a_host_device_may_be_anything(copied_machine: Machine) -> None:
    sys = copied_machine("lab-modern")
    bind(sys, "0000:07:00.0", "vfio-pci")
    (found,) = seen(sys, "0000:07:00.0", "example.com/card")
    assert (found.severity, found.problem.wrong) == (Severity.WARNING, "0000:07:00.0 (USB, 1b36:000d) is no GPU")
    assert seen(sys, "0000:07:00.0", "example.com/card", gpus=False) == []


def test_a_card_that_is_named_by_its_audio_function_is_a_gpu(machine: Machine) -> None:
    assert seen(machine("rtx-2060"), "0000:01:00.1") == []


def test_a_mediated_device_has_to_be_there(machine: Machine) -> None:
    """Nobody makes them again after a boot."""
    gone = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
    (found,) = seen(machine("rtx-2060"), gone, "nvidia.com/GRID_T4-1Q", DeviceKind.MDEV)
    assert f"the mediated device {gone} is not in {machine('rtx-2060')}" in found.problem.wrong


def test_every_card_is_looked_at_and_not_the_first_alone(copied_machine: Machine) -> None:
    sys = copied_machine("two-rtx-3090")
    for address in ("0000:01:00.0", "0000:e1:00.0"):
        bind(sys, address, "nvidia")
    findings = seen(sys, "0000:01:00.0,0000:e1:00.0", RTX_3090)
    assert [finding.problem.subject for finding in findings] == ["gpu 'gpu1'", "gpu 'gpu2'"]


def test_a_container_without_vfio_is_told_what_the_pod_has_to_request(machine: Machine, tmp_path: Path) -> None:
    vfio, group = told(machine("rtx-2060"), tmp_path)
    assert vfio.startswith("/dev/vfio/vfio: is not in the container; expected the pod to request each device")
    assert group.startswith(
        "gpu 'gpu1': /dev/vfio/1, the IOMMU group of 0000:01:00.0, is not in the container; expected"
    )


def test_a_container_with_another_groups_node_has_a_stale_allocation(machine: Machine, tmp_path: Path) -> None:
    """The kubelet repeats for a pod what it has answered before a reboot, and the groups are numbered anew."""
    sys = machine("rtx-2060")
    dev = make_nodes(sys, tmp_path / "dev")
    (dev / "vfio/1").rename(dev / "vfio/12")
    (found,) = told(sys, dev)
    assert (
        "which has those of the groups 12: the address was another device's when it was allocated; delete the pod"
        in found
    )


def test_a_kernel_with_nodes_by_function_alone_is_none_for_libvirt(copied_machine: Machine, tmp_path: Path) -> None:
    sys = copied_machine("rtx-2060")
    dev = make_nodes(sys, tmp_path / "dev", cdevs=True)
    (dev / "vfio/vfio").unlink()
    (found,) = told(sys, dev)
    assert "nodes by function alone (/dev/vfio/devices), and libvirt opens groups" in found
    assert "CONFIG_VFIO_GROUP" in found


def test_by_iommufd_a_card_needs_its_functions_nodes_and_no_groups(copied_machine: Machine, tmp_path: Path) -> None:
    sys = copied_machine("rtx-2060")
    dev = make_nodes(sys, tmp_path / "dev", cdevs=True)
    (dev / "vfio/vfio").unlink()
    assert told(sys, dev, by_iommufd=True) == []
    (dev / "vfio/devices/vfio0").unlink()
    (dev / "iommu").unlink()
    without = "expected a kernel with CONFIG_IOMMUFD and CONFIG_VFIO_DEVICE_CDEV, or leave gpu-launcher.dev/vfio out"
    assert told(sys, dev, by_iommufd=True) == [
        f"/dev/iommu: is not in the container; {without}",
        f"gpu 'gpu1': /dev/vfio/devices/vfio0, for {GPU} by IOMMUFD, is not in the container; {without}",
    ]


def test_by_iommufd_nodes_that_do_not_open_are_said_so(copied_machine: Machine, tmp_path: Path) -> None:
    sys = copied_machine("rtx-2060")
    dev = make_nodes(sys, tmp_path / "dev", cdevs=True)
    for node in ("iommu", "vfio/devices/vfio0"):
        (dev / node).unlink()
        os.mknod(dev / node, stat.S_IFSOCK | 0o600)
    found = told(sys, dev, by_iommufd=True)
    assert [each.partition(": No such device or address; ")[0] for each in found] == [
        "/dev/iommu: cannot be opened",
        "gpu 'gpu1': /dev/vfio/devices/vfio0 cannot be opened",
    ]


def test_a_kernel_without_nodes_by_function_is_none_for_iommufd(machine: Machine, tmp_path: Path) -> None:
    sys = machine("rtx-2060")
    found = told(sys, make_nodes(sys, tmp_path / "dev"), by_iommufd=True)
    assert found[0].startswith("/dev/iommu: is not in the container; expected a kernel with CONFIG_IOMMUFD")
    assert found[1].startswith(
        f"gpu 'gpu1': /dev/vfio/devices, for {GPU} by IOMMUFD, is not in the container; expected"
    )


def test_a_node_that_is_there_and_does_not_open_is_said_in_the_kernels_words(machine: Machine, tmp_path: Path) -> None:
    """A socket is one that even root cannot open."""
    sys = machine("rtx-2060")
    dev = make_nodes(sys, tmp_path / "dev")
    (dev / "vfio/1").unlink()
    os.mknod(dev / "vfio/1", stat.S_IFSOCK | 0o600)
    (found,) = told(sys, dev)
    assert "/dev/vfio/1, the IOMMU group of 0000:01:00.0, cannot be opened: No such device or address" in found


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (errno.EACCES, "Permission denied; expected the node's container runtime to give devices to"),
        (errno.EPERM, "Operation not permitted; expected the pod to request each device"),
    ],
)
def test_what_mends_it_follows_from_how_the_kernel_refuses(machine: Machine, outcome: int, words: str) -> None:
    host = read_host(machine("rtx-2060"))
    nodes = OpenedNodes(opened={"vfio/vfio": None, "vfio/1": outcome}, groups=("1",), has_functions=False)
    (found,) = in_the_container(cards_of(host, GPU), host, nodes, guest_runs=False)
    assert words in str(found)


def test_a_group_in_use_is_an_error_unless_it_is_the_guest_that_runs(machine: Machine) -> None:
    host = read_host(machine("rtx-2060"))
    cards = cards_of(host, GPU)
    nodes = OpenedNodes(opened={"vfio/vfio": None, "vfio/1": errno.EBUSY}, groups=("1",), has_functions=False)
    (found,) = in_the_container(cards, host, nodes, guest_runs=False)
    assert "/dev/vfio/1, the IOMMU group of 0000:01:00.0, is in use: another process has it open" in str(found)
    assert list(in_the_container(cards, host, nodes, guest_runs=True)) == []


def test_a_usb_device_has_its_node(machine: Machine, tmp_path: Path) -> None:
    host = read_host(machine("rtx-2060"))
    cards = cards_of(host, "1:4", "kubevirt.io/storage", DeviceKind.USB, gpus=False)
    node = tmp_path / "bus/usb/001/004"
    (found,) = in_the_container(cards, host, read_nodes(tmp_path, cards, host), guest_runs=False)
    assert str(found).startswith(
        "hostdevice 'gpu1': /dev/bus/usb/001/004, the USB device 1:4, is not in the container; plug"
    )
    node.parent.mkdir(parents=True)
    node.touch()
    assert list(in_the_container(cards, host, read_nodes(tmp_path, cards, host), guest_runs=False)) == []
    assert list(in_sysfs(cards, host, machine("rtx-2060"))) == []


def test_a_card_of_vfios_mode_without_an_iommu_is_refused(machine: Machine) -> None:
    sys = machine("rtx-2060")
    host = replace(read_host(sys), noiommu=frozenset({1}))
    (found,) = in_sysfs(cards_of(host, GPU), host, sys)
    assert "no-IOMMU mode, in which no guest can be given a device" in found.problem.wrong
