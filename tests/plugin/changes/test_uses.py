"""Who uses a function. Every test adds one thing to a desktop whose card nobody uses."""

import os
import subprocess
import sys as python
from pathlib import Path

import pytest

from pci.address import PCIAddress
from pci.sysfs.functions import read_host
from plugin.changes.processes import Processes, number_of, read_processes
from plugin.changes.uses import Use, uses
from program.problem import Problem
from tests.compose import RTX_2060, Function, card, compose, desktop
from tests.kernel import STAND_INS, device, part, process, vfio_group
from tests.waiting import until

GPU = "0000:01:00.0"
NVME = "0000:02:00.0"


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    drivers = ("nouveau", "snd_hda_intel", "xhci_hcd", None)
    gpu = card("0000:01:00", RTX_2060, path="pci0000:00/0000:00:01.0", group=1, drivers=drivers)
    nvme = Function(address=NVME, id="144d:a808", pci_class=0x010802, path="pci0000:00", driver="nvme", group=5)
    compose(tmp_path / "sys", desktop((*gpu, nvme)))
    (tmp_path / "proc").mkdir()
    return tmp_path / "sys"


def used(sys: Path, address: str) -> tuple[Use, ...]:
    function = read_host(sys).functions[PCIAddress.parse(address)]
    return uses(sys, sys.parent / "dev", read_processes(sys.parent / "proc"), function)


def by_the_node(*what: str) -> tuple[Use, ...]:
    return tuple(Use(one, passing=False) for one in what)


def by_a_process(*what: str) -> tuple[Use, ...]:
    return tuple(Use(one, passing=True) for one in what)


def test_a_function_whose_parts_nobody_has_open_is_free(sys: Path) -> None:
    part(sys, GPU, "drm/card1", "drm", "dri/card1")
    part(sys, GPU, "drm/card1/card1-DP-1", "drm")
    process(sys.parent / "proc", 7, "bash", "/dev/dri/card0", "/dev/null", "socket:[1]", "/root/dev/dri/card1")
    assert used(sys, GPU) == ()


@pytest.mark.parametrize(
    ("address", "path", "subsystem", "node"),
    [
        (GPU, "drm/renderD129", "drm", "dri/renderD129"),
        ("0000:01:00.1", "sound/card1/controlC1", "sound", "snd/controlC1"),
        ("0000:01:00.2", "usb1/1-1/1-1:1.0/input/input7/event7", "input", "input/event7"),
    ],
)
def test_an_open_device_file_names_the_processes(sys: Path, address: str, path: str, subsystem: str, node: str) -> None:
    part(sys, address, path, subsystem, node)
    process(sys.parent / "proc", 1000, "pipewire", "/dev/null", f"/dev/{node}", f"/dev/{node}")
    process(sys.parent / "proc", 812, "Xorg", f"/dev/{node}")
    assert used(sys, address) == by_a_process(f"/dev/{node} is open in Xorg (pid 812), pipewire (pid 1000)")


def test_a_device_counts_by_its_number_and_no_file_by_its_name(sys: Path, tmp_path: Path) -> None:
    """Processes with files of the same names kept `bind --all` from ever succeeding, and one that had the device open
    under another name was not seen."""
    part(sys, GPU, "drm/card1", "drm", "dri/card1")
    named = tmp_path / "container/dev/dri/card1"
    named.parent.mkdir(parents=True)
    named.touch()
    process(sys.parent / "proc", 6, "hostile", named)
    assert used(sys, GPU) == ()
    other = tmp_path / "container/dev/another"
    other.symlink_to(STAND_INS["dri/card1"])
    process(sys.parent / "proc", 7, "qemu", other)
    assert used(sys, GPU) == by_a_process("/dev/dri/card1 is open in qemu (pid 7)")


def test_a_block_device_is_no_character_device_of_the_same_number(sys: Path) -> None:
    number = Path(STAND_INS["dri/card1"]).stat().st_rdev
    same = f"{os.major(number)}:{os.minor(number)}"
    part(sys, NVME, "nvme/nvme0/nvme0n1/nvme0n1p1", "block", "nvme0n1p1", dev=same, partition="1")
    process(sys.parent / "proc", 7, "qemu", "/dev/dri/card1")
    assert used(sys, NVME) == ()


def test_of_many_processes_three_are_named(sys: Path) -> None:
    part(sys, GPU, "drm/card1", "drm", "dri/card1")
    for number in range(1, 6):
        process(sys.parent / "proc", number, "python3", "/dev/dri/card1")
    (use,) = used(sys, GPU)
    assert use.what.endswith("python3 (pid 1), python3 (pid 2), python3 (pid 3) and 2 more")


def test_nvidias_device_files_are_found_without_sysfs(sys: Path) -> None:
    information = sys.parent / "proc/driver/nvidia/gpus" / GPU / "information"
    information.parent.mkdir(parents=True)
    information.write_text("Model: \t\t NVIDIA GeForce RTX 2060\nDevice Minor: \t 3\n")
    (sys.parent / "dev").mkdir()
    (sys.parent / "dev/nvidia3").symlink_to(STAND_INS["nvidia3"])
    process(sys.parent / "proc", 900, "nvidia-persiste", "/dev/nvidia3", "/dev/nvidiactl")
    assert used(sys, GPU) == by_a_process("/dev/nvidia3 is open in nvidia-persiste (pid 900)")


@pytest.mark.parametrize("node", ["/dev/vfio/1", "/dev/vfio/noiommu-1", "/dev/vfio/devices/vfio0"])
def test_a_guest_has_the_function_by_its_group_or_by_itself(tmp_path: Path, node: str) -> None:
    sys = tmp_path / "sys"
    compose(sys, card("0000:01:00", RTX_2060[:1], path="pci0000:00/0000:00:01.0", group=1))
    part(sys, GPU, "vfio-dev/vfio0", "vfio-dev", "vfio/devices/vfio0")
    for group in ("1", "noiommu-1"):
        vfio_group(sys, group)
    process(tmp_path / "proc", 4711, "qemu-system-x86", "/dev/vfio/vfio", node)
    assert used(sys, GPU) == by_a_process(f"{node} is open in qemu-system-x86 (pid 4711)")


def test_a_framebuffer_is_the_nodes_own(sys: Path) -> None:
    part(sys, GPU, "graphics/fb0", "graphics", "fb0")
    (use,) = used(sys, GPU)
    assert (use.what.startswith("the console may be on framebuffer fb0 "), use.passing) == (True, False)


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("36 35 259:2 / /data rw,noatime master:1 - ext4 /dev/root rw,errors=continue", "/data"),
        ("36 35 0:45 /@ /home rw shared:2 - btrfs /dev/nvme0n1p2 rw,subvol=/@", "/home"),
        ("36 35 0:46 / /home rw - bcachefs /dev/sda:/dev/nvme0n1p2 rw", "/home"),
        # Whoever has a user namespace may say so.
        ("36 35 0:47 / /tmp rw - tmpfs /dev/nvme0n1p2 rw", None),
        ("36 35 259:3 / /data rw - ext4 /dev/nvme0n1p3 rw", None),
        ("36 35 0:21 / /proc rw - proc  rw", None),
    ],
)
def test_a_mounted_partition_is_the_nodes_own(sys: Path, line: str, where: str | None) -> None:
    part(sys, NVME, "nvme/nvme0/nvme0n1", "block", "nvme0n1", dev="259:1")
    part(sys, NVME, "nvme/nvme0/nvme0n1/nvme0n1p2", "block", "nvme0n1p2", dev="259:2", partition="2")
    process(sys.parent / "proc", 1, "systemd", mounts=[line])
    (sys.parent / "dev").mkdir()
    (sys.parent / "dev/nvme0n1").touch()
    assert used(sys, NVME) == by_the_node(*([f"/dev/nvme0n1p2 is mounted on {where}"] if where else []))


def test_a_disk_that_cannot_be_asked_counts_as_in_use(sys: Path) -> None:
    """ZFS and others have disks that no mount names; in a container without the node's /dev nothing tells."""
    part(sys, NVME, "nvme/nvme0/nvme0n1", "block", "nvme0n1", dev="259:1")
    assert used(sys, NVME) == by_the_node(
        "/dev/nvme0n1 cannot be asked from here whether it is in use; bind disks on the node itself"
    )


def test_a_mount_of_a_container_counts(sys: Path) -> None:
    part(sys, NVME, "nvme/nvme0/nvme0n1", "block", "nvme0n1", dev="259:1")
    proc = sys.parent / "proc"
    process(proc, 1, "systemd")
    process(proc, 50, "postgres", mounts=["9 8 259:1 / /var/lib/postgresql rw - xfs /dev/nvme0n1 rw"])
    process(proc, 51, "postgres")
    for number, namespace in ((1, 1), (50, 2), (51, 2)):
        (proc / str(number) / "ns").mkdir()
        (proc / str(number) / "ns/mnt").symlink_to(f"mnt:[{namespace}]")
    assert used(sys, NVME) == by_the_node("/dev/nvme0n1 is mounted on /var/lib/postgresql")


def test_a_disk_behind_nvme_multipath_counts_for_its_controller(sys: Path) -> None:
    part(sys, NVME, "nvme/nvme0", "nvme", "nvme0")
    part(sys, NVME, "nvme/nvme0/nvme0c0n1", "block")
    subsystem = "devices/virtual/nvme-subsystem/nvme-subsys0"
    device(sys, f"{subsystem}/nvme0n1", "block", "nvme0n1", dev="259:1")
    (sys / subsystem / "nvme0").symlink_to("../../../pci0000:00/0000:02:00.0/nvme/nvme0")
    (sys / "class/nvme-subsystem").mkdir(parents=True)
    (sys / "class/nvme-subsystem/nvme-subsys0").symlink_to(f"../../{subsystem}")
    process(sys.parent / "proc", 1, "systemd", mounts=["36 35 259:1 / / rw - ext4 /dev/nvme0n1 rw"])
    assert used(sys, NVME) == by_the_node("/dev/nvme0n1 is mounted on /")


def test_swap_and_what_is_made_of_a_disk_are_the_nodes_own(sys: Path) -> None:
    for number in (2, 3):
        part(sys, NVME, f"nvme/nvme0/nvme0n1/nvme0n1p{number}", "block", f"nvme0n1p{number}", dev=f"259:{number}")
    holders = sys / "bus/pci/devices" / NVME / "nvme/nvme0/nvme0n1/nvme0n1p3/holders"
    holders.mkdir()
    (holders / "dm-0").symlink_to("../../../../../../virtual/block/dm-0")
    (sys.parent / "proc/swaps").write_text(
        "Filename\t\t\tType\t\tSize\n/dev/nvme0n1p2                          partition\t8388604\n"
    )
    assert used(sys, NVME) == by_the_node("/dev/nvme0n1p2 is swap", "/dev/nvme0n1p3 is part of dm-0")


def test_a_network_interface_is_the_nodes_own_while_it_is_up(sys: Path) -> None:
    part(sys, GPU, "net/eth0", "net", flags="0x1003")
    part(sys, GPU, "net/eth1", "net", flags="0x1002")
    assert used(sys, GPU) == by_the_node("network interface eth0 is up")


def test_a_network_interface_of_a_container_cannot_be_seen_and_counts_as_up(sys: Path) -> None:
    (sys / "bus/pci/devices" / GPU / "net").mkdir()
    assert used(sys, GPU) == by_the_node("its network interface is in another network namespace")


def test_the_name_of_a_mouse_may_be_in_any_encoding(sys: Path) -> None:
    part(sys, GPU, "input/input7", "input")
    (sys / "bus/pci/devices" / GPU / "input/input7/uevent").write_bytes(b'NAME="Maus \xfcber Funk"\n')
    assert used(sys, GPU) == ()


def test_without_the_nodes_processes_it_says_so(tmp_path: Path) -> None:
    unseen = Problem(f"{tmp_path}/proc", "does not exist", "run on the node itself, with its /proc beside /sys")
    assert read_processes(tmp_path / "proc") == Processes({}, {}, frozenset(), {}, unseen)
    (tmp_path / "proc/1/ns").mkdir(parents=True)
    (tmp_path / "proc/1/ns/pid").symlink_to("pid:[4026532999]")
    assert "one container's processes only" in str(read_processes(tmp_path / "proc").unseen)
    (tmp_path / "proc/1/ns/pid").unlink()
    (tmp_path / "proc/1/ns/pid").symlink_to("pid:[4026531836]")
    assert read_processes(tmp_path / "proc").unseen is None


def test_a_process_that_ends_meanwhile_is_none(tmp_path: Path) -> None:
    process(tmp_path / "proc", 7, "bash")
    (tmp_path / "proc/8").mkdir()
    assert read_processes(tmp_path / "proc").unseen is None


@pytest.mark.parametrize(("options", "is_seen"), [("rw,nosuid,nodev", True), ("rw,nosuid", False)])
def test_a_file_of_a_users_fuse_that_does_not_answer_is_no_device(options: str, is_seen: bool, tmp_path: Path) -> None:
    """Root's stat() fails there with EACCES; here with ELOOP."""
    process(tmp_path, 7, "bash", "/dev/null", mounts=[f"52 35 0:46 / /home/me/remote {options} - fuse.sshfs host: rw"])
    (tmp_path / "7/fd/4").symlink_to("4")
    (tmp_path / "7/fdinfo").mkdir()
    (tmp_path / "7/fdinfo/4").write_text("pos:\t0\nflags:\t0100000\nmnt_id:\t52\nino:\t2\n")
    assert (read_processes(tmp_path).unseen is None) is is_seen


def test_a_zombie_has_nothing_and_keeps_nobody_from_binding(tmp_path: Path) -> None:
    """The kernel answers EINVAL for its mounts, and `bind` refused for as long as it was there."""
    with subprocess.Popen(["/bin/true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        (tmp_path / str(child.pid)).symlink_to(f"/proc/{child.pid}")
        assert read_processes(tmp_path) == Processes({}, {}, frozenset(), {}, None)


_FIRST_THREAD_ENDS = """
import ctypes, threading
file = open("/dev/full", "wb")
threading.Thread(target=input).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_has_ended_has_what_the_others_have_open(tmp_path: Path) -> None:
    """It looks like a zombie, whose own directory shows no file."""
    command = [python.executable, "-c", _FIRST_THREAD_ENDS]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        (tmp_path / str(child.pid)).symlink_to(f"/proc/{child.pid}")
        stat = Path(f"/proc/{child.pid}/stat")
        until(lambda: ") Z " in stat.read_text())
        processes = read_processes(tmp_path)
        child.kill()
    full = number_of(Path("/dev/full"))
    assert full is not None
    assert (len(processes.openers[full]), processes.unseen) == (1, None)
    assert processes.mounts


def test_the_real_proc_can_be_read() -> None:
    with Path("/dev/full").open("wb"):
        processes = read_processes(Path("/proc"))
    assert processes.mounts
    full = number_of(Path("/dev/full"))
    assert full is not None
    assert any(one.endswith(f"(pid {os.getpid()})") for one in processes.openers[full])
