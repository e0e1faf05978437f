"""A driver that makes vGPUs as NVIDIA's does, kernel/nvidia.c, on a machine with `vgpus`: held against the files that
stand for it where the plugin is tested, tests/vgpu_kernel.py."""

from collections.abc import Iterator
from pathlib import Path

from pci.sysfs.functions import DEVICES, VGPU_TYPE, VGPU_TYPES
from plugin.changes.engine import Write
from tests.lab.lab import Lab
from tests.lab.machine import NVME
from tests.vgpu_kernel import L40S, Card, Kernel

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


def check_answers(lab: Lab, scratch: Path) -> None:
    """That it says the same to each write, and what both functions are then and can become; they stay turned on."""
    lab.node.sh(f"{SRIOV_MANAGE} -e {CARD}")
    answers = [f"echo {number} | cat 2>&1 > {FUNCTIONS[function]}/{VGPU_TYPE}" for function, number in WRITES]
    shown = "; echo --; ".join(f"cat {function}/{file}" for function in FUNCTIONS for file in (VGPU_TYPE, VGPU_TYPES))
    said = lab.node.sh(f"cd /sys/{DEVICES}; " + "; echo ==; ".join(f"{answer}; echo --; {shown}" for answer in answers))
    seen = [tuple(step.split("--\n")) for step in said.split("==\n")]
    assert [(answer.rpartition(": ")[2].strip(), *files) for answer, *files in seen] == list(_of_files(scratch))


def check_openings(lab: Lab) -> None:
    """That only a vGPU has a place on the card and can be opened, and that it remains one while it is; both functions
    are of a type now."""
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


def check_functions(lab: Lab) -> None:
    """That it takes no number of functions, and that all is lost with them; they are turned off."""
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
