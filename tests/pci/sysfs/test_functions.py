import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from pci.address import InvalidPCIAddress, PCIAddress
from pci.cards import card_of
from pci.sysfs.functions import DEVICES, FILES, LINKS, VFIO_DEV, NotSysfs, read_host
from tests.breaking import Break, breaks, broken
from tests.compose import Function, compose
from tests.conftest import Machine

GPU = PCIAddress.parse("0000:01:00.0")
AUDIO = PCIAddress.parse("0000:01:00.1")


def test_a_function_is_what_its_files_say(machine: Machine) -> None:
    gpu = read_host(machine("rtx-2060")).functions[GPU]
    assert (gpu.vendor_id, gpu.device_id, gpu.pci_class) == (0x10DE, 0x1F08, 0x030000)
    assert (gpu.subsystem_vendor_id, gpu.subsystem_device_id) == (0x1462, 0x3756)
    assert (gpu.driver, gpu.iommu_group, gpu.numa_node, gpu.is_virtual) == ("vfio-pci", 1, None, False)
    assert (gpu.root, gpu.bridges) == ("pci0000:00", (PCIAddress.parse("0000:00:01.0"),))


def test_a_board_without_a_maker_has_zeros_for_its_subsystem(machine: Machine) -> None:
    assert read_host(machine("rtx-2060")).functions[PCIAddress.parse("0000:00:01.0")].subsystem_id == "0000:0000"


@pytest.mark.parametrize(("text", "node"), [("3\n", 3), ("0\n", 0), ("-1\n", None), (None, None)])
def test_a_function_is_on_the_node_that_the_firmware_says_or_on_none(
    copied_machine: Machine, text: str | None, node: int | None
) -> None:
    """A kernel built without NUMA has no such file."""
    sys = copied_machine("rtx-2060")
    path = sys / "bus/pci/devices/0000:01:00.0/numa_node"
    path.unlink() if text is None else path.write_text(text)
    host = read_host(sys)
    assert (host.functions[GPU].numa_node, host.faults) == (node, ())


def test_a_function_on_vfio_has_the_name_of_its_node(copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    (sys / "bus/pci/devices/0000:01:00.0/vfio-dev/vfio8").mkdir(parents=True)
    functions = read_host(sys).functions
    assert (functions[GPU].vfio_device, functions[AUDIO].vfio_device) == ("vfio8", None)


def test_a_list_of_vgpu_types_is_all_its_lines_but_the_heading(tmp_path: Path) -> None:
    names = {1145 + number: f"NVIDIA L40S-{number}Q" for number in range(23)}
    gpu = Function(address="0000:41:00.0", id="10de:26b9", pci_class=0x030200, path="pci0000:40")
    compose(tmp_path, [gpu, replace(gpu, address="0000:41:00.4", physfn="0000:41:00.0")])
    listed = tmp_path / "bus/pci/devices/0000:41:00.4/nvidia/creatable_vgpu_types"
    listed.parent.mkdir()
    listed.write_text("ID    : vGPU Name\n" + "".join(f"{number}  : {name}\n" for number, name in names.items()))
    assert read_host(tmp_path).vgpu_types == names


def test_sixteen_virtual_functions_know_their_physical_one(tmp_path: Path) -> None:
    """Of 32 that there could be; they go on in the slots after the physical function's."""
    physical = Function(address="0000:41:00.0", id="10de:26b9", pci_class=0x030200, path="pci0000:40", group=0)
    at = [f"0000:41:{number >> 3:02x}.{number & 7}" for number in range(4, 20)]
    virtual = [
        replace(physical, address=address, group=group, physfn="0000:41:00.0") for group, address in enumerate(at, 1)
    ]
    compose(tmp_path, [physical, *virtual])
    host = read_host(tmp_path)
    assert len(host.functions) == 17
    of = {str(function.address): str(function.physical_function) for function in host.functions.values()}
    assert of == {"0000:41:00.0": "None", **dict.fromkeys(at, "0000:41:00.0")}
    assert {len(card_of(host, address)) for address in host.functions} == {1}


def test_groups_are_those_of_the_kernels_list(tmp_path: Path) -> None:
    functions = [
        Function(
            address=f"0000:0{slot}:00.{number}", id="10de:2204", pci_class=0x030000, path="pci0000:00", group=group
        )
        for slot, group, count in ((1, 9, 2), (2, 27, 6))
        for number in range(count)
    ]
    compose(tmp_path, functions)
    assert {group: list(map(str, members)) for group, members in read_host(tmp_path).groups.items()} == {
        9: ["0000:01:00.0", "0000:01:00.1"],
        27: [f"0000:02:00.{number}" for number in range(6)],
    }


def test_the_chain_of_bridges_runs_from_the_root_port_down(machine: Machine) -> None:
    gpu = read_host(machine("hgx-a100-8-gpu")).functions[PCIAddress.parse("0000:0f:00.0")]
    assert gpu.root == "pci0000:00"
    assert list(map(str, gpu.bridges)) == [
        "0000:00:01.1",
        "0000:01:00.0",
        "0000:02:08.0",
        "0000:05:00.0",
        "0000:06:10.0",
    ]


def test_behind_vmd_the_innermost_host_bridge_counts(copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    link = sys / "bus/pci/devices/0000:01:00.0"
    inner = sys / "devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0"
    shutil.copytree(link.resolve(), inner, symlinks=True)
    (link.parent / "10000:e1:00.0").symlink_to("../../../" + str(inner.relative_to(sys)))
    function = read_host(sys).functions[PCIAddress.parse("10000:e1:00.0")]
    assert (function.root, list(map(str, function.bridges))) == ("pci10000:e0", ["10000:e0:06.0"])


def test_a_machine_without_iommu_has_no_groups(machine: Machine) -> None:
    host = read_host(machine("rtx-2060-without-iommu"))
    assert host.groups == {}
    assert host.functions[GPU].iommu_group is None


def test_a_group_has_the_members_that_the_kernel_lists_also_unreadable_ones(copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    (sys / "bus/pci/devices/0000:01:00.1/uevent").unlink()
    host = read_host(sys)
    assert AUDIO not in host.functions
    assert AUDIO in host.groups[1]


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("uevent", b"", "holds ''; expected lines with DRIVER, PCI_CLASS, PCI_ID, PCI_SUBSYS_ID"),
        ("uevent", b"PCI_CLASS=30000\nPCI_ID=10DE\n", "expected lines with DRIVER, PCI_CLASS, PCI_ID, PCI_SUBSYS_ID"),
        ("uevent", b"\xff\xfe", "holds binary data; expected text"),
        ("numa_node", b"none\n", "holds 'none'; expected the number of a NUMA node, or -1"),
        ("uevent", b"PCI_CLASS=30000\nPCI_SUBSYS_ID=1462:3756\n", "holds 'PCI_CLASS=30000"),
        ("uevent", b"PCI_CLASS=30000\nPCI_ID=10DE:1F08\nPCI_SUBSYS_ID=notanid\n", "holds 'PCI_CLASS=30000"),
        ("uevent", b"PCI_CLASS=30000\nPCI_ID=10DE:1F08\n", "holds 'PCI_CLASS=30000"),
        ("uevent", b"PCI_CLASS=3" * 100_000, "expected lines with DRIVER, PCI_CLASS, PCI_ID, PCI_SUBSYS_ID"),
    ],
)
def test_a_malformed_file_is_reported_by_name_and_does_not_stop_the_rest(
    copied_machine: Machine, file: str, content: bytes, problem: str
) -> None:
    sys = copied_machine("rtx-2060")
    (sys / "bus/pci/devices/0000:01:00.1" / file).write_bytes(content)
    host = read_host(sys)
    (fault,) = host.faults
    assert fault.path == f"bus/pci/devices/0000:01:00.1/{file}"
    assert problem in fault.problem
    assert GPU in host.functions
    assert AUDIO not in host.functions


def test_a_half_removed_function_is_reported_by_name(copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    shutil.rmtree((sys / "bus/pci/devices/0000:01:00.1").resolve())
    host = read_host(sys)
    (fault,) = host.faults
    assert str(fault).startswith("bus/pci/devices/0000:01:00.1/uevent: missing")
    assert GPU in host.functions


def test_what_is_not_a_function_or_a_group_is_reported_by_name(copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    (sys / "bus/pci/devices/readme").symlink_to("nowhere")
    (sys / "bus/pci/devices/0000:09:00.0").mkdir()
    (sys / "kernel/iommu_groups/one").mkdir()
    assert [str(fault) for fault in read_host(sys).faults] == [
        "bus/pci/devices/0000:09:00.0: expected a link",
        f"bus/pci/devices/readme: {InvalidPCIAddress('readme')}",
        "kernel/iommu_groups/one: 'one' is not the number of an IOMMU group",
    ]


def test_a_directory_that_is_no_sysfs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotSysfs, match="expected a sysfs tree, with bus/pci/devices below it"):
        read_host(tmp_path)


def test_whatever_is_broken_in_one_function_the_others_are_read(copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    as_made = read_host(sys)
    entry = f"{DEVICES}/{AUDIO}"

    @settings(max_examples=300)
    @given(found=breaks([entry, *(f"{entry}/{name}" for name in (*FILES, *LINKS, VFIO_DEV))]))
    def holds(found: list[Break]) -> None:
        with broken(sys, found):
            host = read_host(sys)
        assert set(as_made.functions) - {AUDIO} <= set(host.functions)
        assert (
            AUDIO in host.functions
            or Break(entry, "missing") in found
            or any(str(AUDIO) in fault.path for fault in host.faults)
        )

    holds()
    assert read_host(sys) == as_made
