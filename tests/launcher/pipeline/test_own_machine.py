"""A VM on its user's own machine: what the flags say, what only a cluster has, and where everything is."""

import errno
import os
import re
from pathlib import Path

import pytest
from lxml import etree

from launcher.pipeline.own_machine import own_machine, variables_of
from launcher.pipeline.pod import Pod, with_gpus
from launcher.pipeline.start import Start, start_of
from launcher.pipeline.this_pod import ThisPod
from launcher.runtime.embedded import asked_for, root_of, uri_of
from launcher.vm.cards.checks import OpenedNodes, in_the_container
from launcher.vm.checks import OWN_MACHINE
from launcher.vm.cpu.checks import kvm
from launcher.vm.facts import OwnMachine
from launcher.vm.memory.checks import memlock
from launcher.vm.network.checks import privileged
from launcher.vm.network.guest import attached
from launcher.vm.spec import VirtualMachineInstance
from launcher.vm.volumes.media import Brought, Directory, EmptyImage, Overlay, Symlink, making_media
from pci.sysfs.functions import read_host
from program.errors import ProgramError, Refusal, UserError
from tests.conftest import Command, Machine
from tests.kernel import bind, make_nodes
from tests.launcher.vm.trees import GIB, write
from tests.launcher.vm.volumes.pods import qemu_img
from tests.launcher.vms import RTX_3090, RTX_3090_VARIABLE, entries, read_manifest
from tests.processes import FIXTURES

_VOLUMES = {
    "pvc": "persistentVolumeClaim: {claimName: a}",
    "image": "containerDisk: {image: a}",
    "below": "ephemeral: {persistentVolumeClaim: {claimName: a}}",
    "empty": "emptyDisk: {capacity: 1Mi}",
    "seed": "cloudInitNoCloud: {userData: '#cloud-config'}",
}
_PORTS = "interfaces: [{name: default, masquerade: {}, ports: [{port: 22}, {port: 8080}, {port: 53, protocol: UDP}]}]"
_NETWORK = "  networks: [{name: default, pod: {}}]\n"


def _vm(tmp_path: Path, *names: str, devices: str = "autoattachPodInterface: false", below: str = "") -> Path:
    """A manifest with these volumes, each a disk; `devices` are lines below spec.domain.devices, `below` below spec."""
    disks = "".join(f"\n      - {{name: {name}, disk: {{bus: virtio}}}}" for name in names)
    volumes = "".join(f"\n  - {{name: {name}, {_VOLUMES[name]}}}" for name in names)
    path = tmp_path / "vm.yaml"
    path.write_text(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: vm}\nspec:\n"
        f"  volumes:{volumes or ' []'}\n{below}"
        f"  domain:\n    memory: {{guest: 64Mi}}\n    devices:\n      disks:{disks or ' []'}\n      {devices}\n"
    )
    return path


def _place(
    vmi: VirtualMachineInstance, tmp_path: Path, disks: tuple[str, ...] = (), ports: tuple[str, ...] = ()
) -> OwnMachine:
    environ = {"HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": "/run/user/1000"}
    return own_machine(vmi, disks, ports, environ, 1000)


def _start(path: Path, tmp_path: Path, disks: tuple[str, ...] = (), ports: tuple[str, ...] = ()) -> Start:
    vmi = read_manifest(path)
    own = _place(vmi, tmp_path, disks, ports)
    place = ThisPod(uri=uri_of(own.run), own=own, dev=None, proc=None, emulation=True)
    return start_of(vmi, Pod(environ={"PATH": os.environ["PATH"]}, sysfs=FIXTURES / "sysfs/rtx-2060"), place)


def _images(tmp_path: Path) -> dict[str, Path]:
    raw, qcow2 = tmp_path / "raw.img", tmp_path / "disk.qcow2"
    raw.write_bytes(bytes(1024))
    qcow2.write_bytes(b"QFI\xfb\0\0\0\x03".ljust(1024, b"\0"))
    return {"raw": raw, "qcow2": qcow2}


def test_its_files_are_in_its_users_directories_and_its_disks_are_those_that_are_named(tmp_path: Path) -> None:
    given = _images(tmp_path)
    disks = (f"pvc={given['qcow2']}", f"image={given['qcow2']}", f"below={given['raw']}")
    efi = "firmware: {bootloader: {efi: {secureBoot: false, persistent: true}}}"
    path = _vm(
        tmp_path, *_VOLUMES, devices=f"tpm: {{persistent: true}}\n      autoattachPodInterface: false\n    {efi}"
    )
    start = _start(path, tmp_path, disks)
    assert start.xml is not None, start.errors
    tree = etree.fromstring(start.xml)
    state, run = tmp_path / "home/.local/state/gpu-launcher/default_vm", "/run/user/1000/gpu-launcher/default_vm"
    overlay = f"{state}/var/run/kubevirt-ephemeral-disks/disk-data/{{}}/disk.qcow2"
    found = {disk.findall("alias")[0].attrib["name"][3:]: disk for disk in tree.iterfind("devices/disk")}
    sources = {
        name: (disk.findall("driver")[0].get("type"), disk.findall("source")[0].get("file"))
        for name, disk in found.items()
    }
    assert sources == {
        "pvc": ("qcow2", str(given["qcow2"])),
        "image": ("qcow2", overlay.format("image")),
        "below": ("qcow2", overlay.format("below")),
        "empty": ("qcow2", f"{state}/var/run/libvirt/empty-disks/empty.qcow2"),
        "seed": (
            "raw",
            f"{state}/var/run/kubevirt-ephemeral-disks/cloud-init-data/default/vm/noCloud.iso",
        ),
    }
    assert found["pvc"].find("backingStore") is not None, "libvirt would look into the image for one"
    chains = {name: disk.find("backingStore/format") for name, disk in found.items()}
    assert {name: kind.get("type") for name, kind in chains.items() if kind is not None} == {
        "image": "qcow2",
        "below": "raw",
    }
    named = {each for each in re.findall(r'(?:path|socket)="([^"]+)"|<nvram>(.+)</nvram>', start.xml) if any(each)}
    assert {"".join(each) for each in named} == {
        *(f"{run}/guest/{socket}" for socket in ("virt-serial0", "virt-vnc", "agent")),
        f"{state}/var/run/kubevirt-private/libvirt/qemu/nvram/vm_VARS.fd",
    }
    kept = state / "var/lib/swtpm"
    assert Symlink(Path(run, "lib/swtpm"), kept) in start.needs
    assert {need.path for need in start.needs if isinstance(need, Directory)} == {
        kept,
        state / "var/run/kubevirt-private/libvirt/qemu/nvram",
    }
    assert [need.stays for need in start.needs if isinstance(need, Overlay | EmptyImage)] == [False] * 3
    assert {need.path for need in start.needs if isinstance(need, Brought)} == set(given.values())


def test_what_the_guest_writes_over_an_image_is_gone_with_the_vm(tmp_path: Path) -> None:
    """As in a pod; another image behind the same writes would be no disk."""
    image = tmp_path / "raw.img"
    image.write_bytes(bytes(1 << 20))
    overlay = Overlay(tmp_path / "state/disk.qcow2", image, "raw", stays=False)
    with making_media([overlay]):
        with overlay.path.open("r+b") as written:
            written.seek(4096)
            written.write(b"the guest's")
        with making_media([overlay]):
            assert b"the guest's" not in overlay.path.read_bytes()
    assert not overlay.path.parent.exists()


@pytest.mark.parametrize("volume", ["pvc", "image", "below"])
def test_an_image_that_names_another_file_is_refused_whoever_wrote_it(tmp_path: Path, volume: str) -> None:
    hostile = tmp_path / "disk.qcow2"
    hostile.write_bytes(b"QFI\xfb\0\0\0\x03\0\0\0\0\0\0\0\x68".ljust(1024, b"\0"))
    start = _start(_vm(tmp_path, volume), tmp_path, (f"{volume}={hostile}",))
    (error,) = start.errors
    assert f"the volume {volume!r}: {hostile} has a backing file" in str(error)


@pytest.mark.parametrize("volume", ["pvc", "image", "below"])
@pytest.mark.parametrize(
    ("name", "made_as", "words"),
    [
        ("x.vmdk", "vmdk", "is a vmdk image, and would be opened as raw by its name; qemu-img convert -f vmdk -O"),
        ("x.img", "qcow2", "is a qcow2 image, and would be opened as raw by its name; name it x.qcow2"),
        ("x.qcow2", "raw", "is a raw image, and would be opened as qcow2 by its name; name it x.img"),
    ],
)
def test_the_name_of_a_disk_is_its_format(tmp_path: Path, volume: str, name: str, made_as: str, words: str) -> None:
    qemu_img("create", "-q", "-f", made_as, tmp_path / name, "1M")
    start = _start(_vm(tmp_path, volume), tmp_path, (f"{volume}={tmp_path / name}",))
    (error,) = start.errors
    assert f"the volume {volume!r}: {tmp_path / name} {words}" in str(error)


def test_what_a_guest_writes_into_its_raw_disk_is_never_opened_as_what_it_looks_like(tmp_path: Path) -> None:
    disk = tmp_path / "x.img"
    disk.write_bytes(bytes(1024))
    path = _vm(tmp_path, "pvc")
    with making_media(_start(path, tmp_path, (f"pvc={disk}",)).needs):
        disk.write_bytes(b"QFI\xfb\0\0\0\x03\0\0\0\0\0\0\0\x68".ljust(1024, b"\0"))  # with a backing file
    start = _start(path, tmp_path, (f"pvc={disk}",))
    assert start.xml is not None, start.errors
    assert etree.fromstring(start.xml).xpath("//disk/driver/@type") == ["raw"]


def test_ports_are_this_machines_own_and_none_is_open_that_is_not_named(tmp_path: Path) -> None:
    start = _start(_vm(tmp_path, devices=_PORTS, below=_NETWORK), tmp_path, ports=("2222:22", "8443:443"))
    assert start.xml is not None, start.errors
    forwards = etree.fromstring(start.xml).findall("devices/interface/portForward")
    assert {each.get("address") for each in forwards} == {"127.0.0.1"}
    ranges = {each.get("proto"): [dict(range_.attrib) for range_ in each] for each in forwards}
    assert ranges == {
        "tcp": [{"start": "2222", "to": "22"}, {"start": "8080"}, {"start": "8443", "to": "443"}],
        "udp": [{"start": "53"}],
    }
    unnamed = _PORTS.partition(", ports")[0] + "}]"
    start = _start(_vm(tmp_path, devices=unnamed, below=_NETWORK), tmp_path)
    assert start.xml is not None
    assert "portForward" not in start.xml


def test_a_port_that_is_only_roots_to_listen_on_is_refused_with_another(tmp_path: Path) -> None:
    cards = attached(read_manifest(_vm(tmp_path, devices=_PORTS, below=_NETWORK)).spec, own={})
    found = [str(each) for each in privileged(cards, "1024", is_root=False)]
    assert [line.partition("give it")[2] for line in found] == [
        " another one, like --port 2222:22",
        " another one, like --port 2253:53",
    ]
    assert list(privileged(cards, "0", is_root=False)) == list(privileged(cards, "1024", is_root=True)) == []


def test_each_entry_gets_its_card_in_the_manifests_order() -> None:
    wanted = entries(gpus=[("a", RTX_3090), ("b", "amd.com/x")], host_devices=[("c", RTX_3090)])
    assert variables_of(["0000:e1:00.0", "41:00.0", "01:00.0"], wanted) == {
        RTX_3090_VARIABLE: "0000:e1:00.0,0000:01:00.0",
        "PCI_RESOURCE_AMD_COM_X": "0000:41:00.0",
    }


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (["01:00.0"], "names 1, and the entries of gpus and hostDevices are 2: gpu 'a', gpu 'b'"),
        (["01:00.0", "0000:01:00.0"], "--gpu 0000:01:00.0: is there twice"),
        (["01:00.0", "card1"], "--gpu card1: is no PCI address; expected domain:bus:slot.function"),
    ],
)
def test_a_card_that_is_missing_twice_there_or_no_address_is_refused(gpus: list[str], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        variables_of(gpus, entries(gpus=[("a", RTX_3090), ("b", RTX_3090)]))


@pytest.mark.parametrize(
    ("disks", "words"),
    [
        (["pvc"], "--disk pvc: is no volume's disk; expected NAME=PATH"),
        (["pvc={}/missing"], "missing: cannot be found: No such file or directory"),
        (["pvc={}/\x01.img"], "has a character that cannot be printed in its path"),
        (["pvc={}"], "is no file; expected a disk image or a block device"),
        (["pvc={}/raw.img", "pvc={}/disk.qcow2"], "--disk pvc: is there twice"),
        ([], "the volume 'pvc': is a persistentVolumeClaim, which comes from a cluster"),
    ],
)
def test_a_disk_that_is_none_is_refused(tmp_path: Path, disks: list[str], words: str) -> None:
    _images(tmp_path)
    (tmp_path / "\x01.img").touch()
    with pytest.raises(UserError, match=re.escape(words)):
        _place(read_manifest(_vm(tmp_path, "pvc")), tmp_path, tuple(disk.format(tmp_path) for disk in disks))


def test_all_that_only_a_cluster_has_is_refused_by_name_at_once(tmp_path: Path) -> None:
    below = (
        "  - {name: words, configMap: {name: a}}\n"
        "  - {name: seed, cloudInitNoCloud: {secretRef: {name: a}}}\n"
        "  - {name: shared, persistentVolumeClaim: {claimName: a}}\n"
        "  networks: [{name: default, pod: {}}, {name: lan, multus: {networkName: lan}}]\n"
        "  accessCredentials: [{userPassword: {source: {secret: {secretName: a}},"
        " propagationMethod: {qemuGuestAgent: {}}}}]\n"
    )
    devices = (
        "interfaces: [{name: default, masquerade: {}}, {name: lan, bridge: {}}]\n"
        "      filesystems: [{name: shared, virtiofs: {}}]\n"
        "    firmware: {kernelBoot: {container: {image: a, kernelPath: /k}}}"
    )
    path = _vm(tmp_path, "empty", devices=devices, below=below)
    disks = "".join(f"\n      - {{name: {name}, disk: {{}}}}" for name in ("words", "seed"))
    path.write_text(path.read_text().replace("disks:", f"disks:{disks}"))
    with pytest.raises(UserError) as raised:
        _place(read_manifest(path), tmp_path)
    assert [(problem.subject, problem.wrong.partition(",")[0]) for problem in raised.value.problems] == [
        ("the volume 'words'", "is a configMap"),
        ("the volume 'seed'", "is a cloudInitNoCloud"),
        ("the volume 'shared'", "is a directory for virtiofs"),
        ("firmware.kernelBoot.container", "is there"),
        ("accessCredentials", "is there"),
        ("networks: lan", "is there"),
    ]


def test_a_long_name_has_a_short_directory_and_nobody_without_a_place_starts(tmp_path: Path) -> None:
    """A socket's path has 107 bytes."""
    path = _vm(tmp_path)
    path.write_text(path.read_text().replace("name: vm", f"name: {'long-' * 12}x"))
    vmi = read_manifest(path)
    own = _place(vmi, tmp_path)
    assert own.run.name == f"default_long-long--{str(vmi.uuid)[:8]}"
    assert root_of(uri_of(own.run)) == own.run
    with pytest.raises(Refusal, match="XDG_RUNTIME_DIR: is not set"):
        own_machine(vmi, (), (), {"HOME": "/home/me"}, 1000)
    with pytest.raises(Refusal, match="is too long for the names of sockets in it"):
        own_machine(vmi, (), (), {"XDG_RUNTIME_DIR": "/" + "run" * 12}, 1000)
    assert own_machine(vmi, (), (), {"HOME": "/root"}, 0).run.parent == Path("/run/gpu-launcher")


def test_the_first_process_leaves_the_root_to_whoever_reads_the_manifest() -> None:
    assert asked_for(["--vm", "vm.yaml", "--disk", "root=disk.img"]) == ""


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--disk", "system=x"), "--disk system: the manifest has no such volume; expected one of pvc"),
        (("--connect", "test:///default", "--disk", "pvc=x"), "--connect: is for another libvirt"),
        (("--port", "22"), "--port 22: the guest has no network"),
    ],
)
def test_a_flag_that_does_not_fit_is_one_line_and_2(
    gpu_launcher: Command, tmp_path: Path, flags: tuple[str, ...], words: str
) -> None:
    as_root = ("--user=root",) if os.geteuid() == 0 else ()  # with a warning; another user may not read tmp_path
    done = gpu_launcher("check", _vm(tmp_path, "pvc"), *flags, *as_root, env={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert done.returncode == 2
    assert done.stderr.splitlines()[len(as_root)].startswith(f"gpu-launcher: {words}")


def test_explain_takes_a_card_by_its_address(gpu_launcher: Command) -> None:
    vm, sysfs = FIXTURES / "vms/two-gpus.yaml", FIXTURES / "sysfs/two-rtx-3090"
    done = gpu_launcher("explain", vm, "--sysfs", sysfs, "--gpu", "e1:00.0", "--gpu", "0000:01:00.0")
    assert re.findall(r"^gpu (\w+) +([\w:.]+) ", done.stdout, re.MULTILINE)[:2] == [
        ("gpu1", "0000:e1:00.0"),
        ("gpu2", "0000:01:00.0"),
    ]


def test_a_card_that_is_not_ready_says_what_its_user_does(copied_machine: Machine, tmp_path: Path) -> None:
    vmi, sys = read_manifest(FIXTURES / "vms/two-gpus.yaml"), copied_machine("two-rtx-3090")
    dev = make_nodes(sys, tmp_path / "dev")
    (dev / "vfio/71").unlink()
    bind(sys, "0000:01:00.0", "nvidia")
    own = _place(vmi, tmp_path)
    pod = with_gpus(Pod(environ={"PATH": os.environ["PATH"]}, sysfs=sys), ["01:00.0", "e1:00.0"], vmi)
    start = start_of(vmi, pod, ThisPod(uri=uri_of(own.run), own=own, dev=dev, proc=None, emulation=True))
    said = [str(error) for error in start.errors if isinstance(error, ProgramError)]
    assert (
        "gpu 'gpu1': 0000:01:00.0 (VGA, 10de:2204) is bound to nvidia; bind the whole card to vfio-pci: "
        "sudo gpu-plugin bind 0000:01:00.0, or name another card: gpu-plugin inventory lists them"
    ) in said
    assert (
        "gpu 'gpu2': /dev/vfio/71, the IOMMU group of 0000:e1:00.0, is not on this machine; bind the card to vfio-pci "
        "again: sudo gpu-plugin unbind, and bind"
    ) in said


def test_too_few_cpus_and_huge_pages_are_this_machines_and_no_pods(copied_machine: Machine, tmp_path: Path) -> None:
    pool = "kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
    sys = write(copied_machine("two-rtx-3090"), {"fs/cgroup/cpuset.cpus.effective": "0-1\n", pool: "0\n"})
    path = _vm(tmp_path)
    memory = "    memory: {guest: 64Mi, hugepages: {pageSize: 2Mi}}\n    cpu: {cores: 4, dedicatedCpuPlacement: true}\n"
    path.write_text(path.read_text().replace("    memory: {guest: 64Mi}\n", memory))
    vmi = read_manifest(path)
    own = _place(vmi, tmp_path)
    pod = Pod(environ={"PATH": os.environ["PATH"]}, sysfs=sys)
    start = start_of(vmi, pod, ThisPod(uri=uri_of(own.run), own=own, dev=None, proc=None, emulation=True))
    errors = "\n".join(map(str, start.errors))
    assert "and this machine has 2 (0-1); give the guest fewer cores or threads" in errors
    assert "hugepages of 2 MiB: are free for 0 MiB, and the guest has 64 MiB; reserve more as root" in errors
    assert "pod" not in errors


def test_permissions_and_limits_say_what_root_does_for_the_user(machine: Machine) -> None:
    vmi, host = read_manifest(FIXTURES / "vms/two-gpus.yaml"), read_host(machine("two-rtx-3090"))
    pod = with_gpus(Pod(environ={}, sysfs=machine("two-rtx-3090")), ["01:00.0", "e1:00.0"], vmi)
    cards = start_of(vmi, pod, ThisPod(uri="test:///default")).cards
    nodes = {"vfio/vfio": None, "vfio/11": errno.EACCES, "vfio/71": errno.EBUSY}
    opened = OpenedNodes(opened=nodes, groups=("11", "71"), has_functions=False)
    closed, used = map(str, in_the_container(cards, host, opened, guest_runs=False, wording=OWN_MACHINE))
    assert (
        "cannot be opened: Permission denied; give it to the user that starts the VM: sudo chown $USER /dev/vfio/11"
        in (closed)
    )
    assert (
        "is in use: another process has it open; end the guest or the program that has the card: sudo find "
        "/proc/[0-9]*/fd -lname /dev/vfio/71 prints its number" in used
    )
    locked = str(memlock(5 * GIB, 8 << 20, OWN_MACHINE))
    assert "5120 MiB with libvirt's reserve, and this user may lock 8 MiB; raise the user's limit as root" in locked
    device = Path("/dev/kvm")
    assert "sudo usermod -aG kvm $USER" in str(kvm(device, errno.EACCES, emulation_allowed=False, wording=OWN_MACHINE))
    assert "turn virtualization on in the firmware" in str(
        kvm(device, errno.ENOENT, emulation_allowed=False, wording=OWN_MACHINE)
    )
