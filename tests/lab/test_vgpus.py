"""vGPUs of a driver that makes them as NVIDIA's does: tests/lab/kernel/nvidia.c, on the machine's SR-IOV device.

The tests stand in the order of the node's life: its card has no virtual functions at first.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pci.sysfs.functions import DEVICES, VGPU_TYPE, VGPU_TYPES
from plugin.binding.plan import Write
from tests.lab.lab import Lab
from tests.lab.machine import MODERN, NVME
from tests.vgpu_kernel import L40S, Card, Kernel

MACHINE = replace(MODERN, vgpus=True)

CARD = f"{NVME}.0"
FUNCTIONS = (f"{NVME}.1", f"{NVME}.2")
SRIOV_MANAGE = "/usr/lib/nvidia/sriov-manage"
#: A type that needs a GPU instance, which the card does not have.
WITHOUT_INSTANCE = 1200
#: Which function is told to be of which type, one after the other.
WRITES = (
    *((0, 1152), (1, 1155), (1, 1153), (0, 1154), (0, 0), (1, 0)),  # another size; the same size; a second type
    *((0, WITHOUT_INSTANCE), (0, 77), (0, 1156), (1, 1145), (0, 0)),  # no instance; unknown; all of the memory
    *((0, 1155), (1, 1155)),
)
#: Opens the function by IOMMUFD, as QEMU does, and keeps it open.
_OPEN = """\
sysopen my $iommu, "/dev/iommu", 2 or die "iommu: $!";
sysopen my $node, "/dev/vfio/devices/$ARGV[0]", 2 or die "node: $!";
my $bind = pack "LLlL", 16, 0, fileno $iommu, 0;
ioctl $node, 0x3b76, $bind or die "VFIO_DEVICE_BIND_IOMMUFD: $!\\n";
$SIG{TERM} = sub { exit };
$| = 1;
print "opened\\n";
sleep;
"""


def test_a_virtual_function_answers_as_the_files_do_that_stand_for_it(lab: Lab, tmp_path: Path) -> None:
    """tests/vgpu_kernel.py: what a write says, and what both functions are then and can become."""
    lab.node.sh(f"{SRIOV_MANAGE} -e {CARD}")
    answers = [f"echo {number} | cat 2>&1 > {FUNCTIONS[function]}/{VGPU_TYPE}" for function, number in WRITES]
    shown = "; echo --; ".join(f"cat {function}/{file}" for function in FUNCTIONS for file in (VGPU_TYPE, VGPU_TYPES))
    said = lab.node.sh(f"cd /sys/{DEVICES}; " + "; echo ==; ".join(f"{answer}; echo --; {shown}" for answer in answers))
    seen = [tuple(step.split("--\n")) for step in said.split("==\n")]
    assert [(answer.rpartition(": ")[2].strip(), *files) for answer, *files in seen] == list(_of_files(tmp_path))


def test_only_a_vgpu_can_be_opened_and_it_remains_one_while_it_is(lab: Lab) -> None:
    """And only a vGPU has a place on the card."""
    one, other = (f"{function}/{VGPU_TYPE}" for function in FUNCTIONS)
    said = lab.node.sh(
        f"cat > /run/open.pl << 'END'\n{_OPEN}END\n"
        f"cd /sys/{DEVICES}; node=$(ls {FUNCTIONS[0]}/vfio-dev); cat {FUNCTIONS[1]}/nvidia/placement_id\n"
        "perl /run/open.pl $node > /run/opened & until [ -s /run/opened ]; do sleep 0.1; done\n"
        f"echo 0 | cat > {one}; cat {one}; kill $!; wait $!\n"
        f"echo 0 > {one}; perl /run/open.pl $node; cat {FUNCTIONS[0]}/nvidia/gpu_instance_id; cat {other}"
    )
    assert said.splitlines() == [
        *("24", "cat: write error: Operation not permitted", "1155"),
        "VFIO_DEVICE_BIND_IOMMUFD: Invalid argument",
        f"cat: '{FUNCTIONS[0]}/nvidia/gpu_instance_id': No such device or address",
        "1155",
    ]


def test_the_driver_takes_no_number_of_functions_and_all_is_lost_with_them(lab: Lab) -> None:
    said = lab.node.sh(
        f"cd /sys/{DEVICES}; echo 0 | cat > {CARD}/sriov_numvfs; ls -d {NVME}.*\n"
        f"{SRIOV_MANAGE} -d {CARD}; ls -d {NVME}.*\n"
        f"{SRIOV_MANAGE} -e {CARD}; cat {NVME}.[12]/{VGPU_TYPE}; {SRIOV_MANAGE} -d {CARD}; cat {CARD}/vendor"
    )
    assert said.splitlines() == [
        "cat: write error: No such file or directory",
        *(CARD, *FUNCTIONS, CARD),
        *("0", "0", "0x10de"),
    ]


def _of_files(root: Path) -> Iterator[tuple[str, ...]]:
    """What the files say to each of WRITES, and then have."""
    card = Card(bus=6, possible=len(FUNCTIONS), types=L40S, without_instance=frozenset({WITHOUT_INSTANCE}))
    kernel = Kernel(root, card)
    kernel.sriov_manage("-e", card.address)
    for function, number in WRITES:
        said = ""
        try:
            kernel.write(Write(f"{DEVICES}/{card.functions[function]}/{VGPU_TYPE}", str(number)))
        except OSError as error:
            said = str(error.strerror)
        files = (kernel.sys / DEVICES / one / file for one in card.functions for file in (VGPU_TYPE, VGPU_TYPES))
        yield said, *(file.read_text() for file in files)
