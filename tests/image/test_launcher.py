"""gpu-launcher's image, as `make image` has just written it, in the Pod that `gpu-launcher pod` prints: a VM's life."""

import hashlib
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from program.ending import Ending
from tests.image.container import Container
from tests.image.guest import guest_disk
from tests.image.pod import ADDRESS, ADDRESS_6, DNS, GATEWAY, SEARCH, RunningPod, running

VM = """\
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: vm
  annotations: {gpu-launcher.dev/allow-emulation: "true"}
spec:
  terminationGracePeriodSeconds: 60
  networks: [{name: default, pod: {}}, {name: lan, multus: {networkName: lan}}]
  volumes:
  - {name: root, containerDisk: {image: "guest:1"}}
  - {name: seed, cloudInitNoCloud: {userData: "#cloud-config of the test, with static IPv6"}}
  domain:
    memory: {guest: 512Mi}
    cpu: {model: qemu64}
    firmware: {bootloader: {efi: {secureBoot: false}}}
    devices:
      disks: [{name: root, disk: {bus: virtio}}, {name: seed, disk: {bus: virtio}}]
      tpm: {}
      interfaces: [{name: default, masquerade: {}, ports: [{port: 8080}]}, {name: lan, bridge: {}}]
"""


#: With something of root's: a disk that is a file of the node's.
VM_WITH_A_HOST_DISK = """\
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: vm
  annotations: {{gpu-launcher.dev/allow-emulation: "true"}}
spec:
  terminationGracePeriodSeconds: 0
  networks: [{{name: default, pod: {{}}}}]
  volumes:
  - {{name: data, hostDisk: {{path: {directory}/data.img, type: DiskOrCreate, capacity: 1Mi}}}}
  domain:
    memory: {{guest: 64Mi}}
    cpu: {{model: qemu64}}
    devices:
      disks: [{{name: data, disk: {{bus: virtio}}}}]
      tpm: {{}}
      interfaces: [{{name: default, passt: {{}}, ports: [{{port: 8080}}]}}]
"""
GUEST_ON_THE_LAN, REFUSED = "192.0.2.9", "Connection refused"  # the guest gives itself that address (guest/init)
#: What each process of the container is, as whom, and with which capabilities.
_WHO = "grep -hE '^(Name|Uid|CapEff):' /proc/[0-9]*/status | paste - - -"


def _objects(vm: str, container: Container) -> list[dict[str, Any]]:
    """What the image's own `gpu-launcher pod` prints."""
    (container.out / "vm.yaml").write_text(vm)
    return list(yaml.safe_load_all(container.run("gpu-launcher", "pod", "/out/vm.yaml")))


def _added(objects: list[dict[str, Any]]) -> list[str]:
    """The capabilities of the pod's container."""
    (pod,) = (manifest for manifest in objects if manifest["kind"] == "Pod")
    added: list[str] = pod["spec"]["containers"][0]["securityContext"]["capabilities"]["add"]
    return added


def _guest_image(container: Container, directory: Path) -> Path:
    """What a containerDisk's image is: a qcow2 image of the guest's disk, by the image's own qemu-img."""
    disk = directory / "disk"
    disk.mkdir(parents=True)
    shutil.copy(guest_disk(), container.out / "disk.raw")
    container.run("qemu-img", "convert", "-O", "qcow2", "/out/disk.raw", "/out/disk.qcow2")
    shutil.move(container.out / "disk.qcow2", disk)
    return directory


def _page(pod: RunningPod, address: str) -> str:
    """The page that the guest serves there, or why it cannot be had, seen from the pod."""
    fetch = (
        "import urllib.request as r, urllib.error as e\n"
        f"try: print(r.urlopen('http://{address}/', timeout=30).read().decode(), end='')\n"
        "except e.URLError as error: print(error.reason.strerror, end='')\n"
    )
    return pod.exec("python3", "-c", fetch)


def _who(pod: RunningPod) -> dict[str, tuple[str, int]]:
    """The user and the effective capabilities of each program in the pod."""
    lines = (line.split() for line in pod.exec("sh", "-c", _WHO).splitlines())
    # passt's file for newer processors is called passt.avx2. What looks is not of the VM's.
    found = {words[1].removesuffix(".avx2"): (words[3], int(words[-1], 16)) for words in lines}
    return {name: who for name, who in found.items() if name not in ("sh", "grep", "paste")}


def test_a_vm_boots_in_its_pod_with_all_that_it_asks_for_and_shuts_down_when_asked(
    launcher_container: Container, tmp_path: Path
) -> None:
    objects, console = _objects(VM, launcher_container), tmp_path / "console"
    images = {"guest:1": _guest_image(launcher_container, tmp_path / "guest")}
    with running(objects, launcher_container.root(), tmp_path, images) as pod:
        pod.until("it is ready", pod.is_ready, 60)
        with pod.executing("gpu-launcher", "ctl", "console", into=console) as joined:
            pod.until("the guest is up", lambda: "GUEST ready" in console.read_text(errors="replace"), 120)
            state = pod.exec("gpu-launcher", "ctl", "state")
            pages = [_page(pod, f"{host}:8080") for host in (ADDRESS, f"[{ADDRESS_6}]", GUEST_ON_THE_LAN)]
            others = [_page(pod, f"{host}:9090") for host in (ADDRESS, f"[{ADDRESS_6}]")]
            who = _who(pod)
            assert pod.terminate(60) == 0
            assert joined.wait(10) == 0
        log = pod.log.read_text()
    said = [line for line in console.read_text(errors="replace").splitlines() if line.startswith("GUEST ")]
    assert {"GUEST firmware EFI", "GUEST TPM 2"} < set(said)
    assert "GUEST user-data #cloud-config of the test, with static IPv6" in said
    assert {"GUEST address 10.0.2.2/24", "GUEST gateway 10.0.2.1", f"GUEST DNS {DNS}, {SEARCH}"} < set(said)
    assert "GUEST IPv6 fd10:0:2::2/120" in said
    assert [page.splitlines() for page in pages] == [said[:-1]] * 3, "by IPv4, by IPv6 and on its second network"
    assert others == [REFUSED, REFUSED], "a port that is not listed reaches nobody"
    assert said[-1] == "GUEST power button"
    assert state == "default/vm: running\n"
    assert log.endswith("INFO default_vm has ended: as requested\n")
    assert {"gpu-launcher", "passt", "qemu-system-x86", "swtpm"} <= set(who)
    assert set(who.values()) == {("107", 0)}, "nobody has a capability, or is another user"


def test_a_guest_on_a_bridge_has_the_pods_address_and_all_its_ports(
    launcher_container: Container, tmp_path: Path
) -> None:
    vm = VM.replace("masquerade: {}, ports: [{port: 8080}]", "bridge: {}").replace(", with static IPv6", "")
    objects, console = _objects(vm, launcher_container), tmp_path / "console"
    (pod_object,) = (manifest for manifest in objects if manifest["kind"] == "Pod")
    # passt has a socket for each port but those from which connections go out, and a test may not open so many files.
    pod_object["spec"]["securityContext"]["sysctls"] += [
        {"name": "net.ipv4.ip_local_port_range", "value": "1024 60999"}
    ]
    images = {"guest:1": _guest_image(launcher_container, tmp_path / "guest")}
    with running(objects, launcher_container.root(), tmp_path, images) as pod:
        pod.until("it is ready", pod.is_ready, 60)
        with pod.executing("gpu-launcher", "ctl", "console", into=console):
            pod.until("the guest is up", lambda: "GUEST ready" in console.read_text(errors="replace"), 120)
            page = _page(pod, f"{ADDRESS}:80")
            assert pod.terminate(60) == 0
    said = [line for line in console.read_text(errors="replace").splitlines() if line.startswith("GUEST ")]
    assert {f"GUEST address {ADDRESS}/24", f"GUEST gateway {GATEWAY}", f"GUEST DNS {DNS}, {SEARCH}"} < set(said)
    assert page.splitlines() == said[:-1]


def test_what_is_roots_is_handed_over_before_anything_of_the_vm_starts(
    launcher_container: Container, tmp_path: Path, outside_dev: Path
) -> None:
    objects = _objects(VM_WITH_A_HOST_DISK.format(directory=outside_dev), launcher_container)
    assert _added(objects) == ["CHOWN", "SETGID", "SETUID"]
    with running(objects, launcher_container.root(), tmp_path, {}) as pod:
        pod.until("it is ready", pod.is_ready, 60)
        assert set(_who(pod).values()) == {("107", 0)}
        assert pod.exec("gpu-launcher", "ctl", "state") == "default/vm: running\n"
        assert pod.terminate(30) == 0
    made = (outside_dev / "data.img").stat()
    assert (made.st_size, made.st_uid) == (1 << 20, 107)


@pytest.mark.parametrize("capability", ["CHOWN", "SETGID", "SETUID"])
def test_without_any_capability_of_its_own_root_hands_nothing_over_and_says_so(
    launcher_container: Container, tmp_path: Path, outside_dev: Path, capability: str
) -> None:
    objects = _objects(VM_WITH_A_HOST_DISK.format(directory=outside_dev), launcher_container)
    _added(objects).remove(capability)
    with running(objects, launcher_container.root(), tmp_path, {}) as pod:
        assert pod.parent.wait(30) == 1
        (line,) = pod.log.read_text().splitlines()
    assert f"{capability}" in line.partition("give the container the capabilities ")[2]


#: With volumes that the guest mounts, a key and a password for root by its agent, and probes that the agent answers.
VM_WITH_AN_AGENT = """\
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: vm
  annotations: {gpu-launcher.dev/allow-emulation: "true"}
spec:
  terminationGracePeriodSeconds: 10
  readinessProbe: {exec: {command: [test, -e, /run/healthy]}, timeoutSeconds: 5}
  livenessProbe: {guestAgentPing: {}, timeoutSeconds: 5}
  accessCredentials:
  - sshPublicKey:
      source: {secret: {secretName: keys}}
      propagationMethod: {qemuGuestAgent: {users: [root]}}
  - userPassword:
      source: {secret: {secretName: words}}
      propagationMethod: {qemuGuestAgent: {}}
  networks: [{name: default, pod: {}}]
  volumes:
  - {name: root, containerDisk: {image: "guest:1"}}
  - {name: data, persistentVolumeClaim: {claimName: data}}
  - {name: shown, secret: {secretName: keys}}
  domain:
    memory: {guest: 512Mi}
    cpu: {model: qemu64}
    firmware: {bootloader: {efi: {secureBoot: false}}}
    devices:
      disks: [{name: root, disk: {bus: virtio}}]
      filesystems: [{name: data, virtiofs: {}}, {name: shown, virtiofs: {}}]
      interfaces: [{name: default, passt: {}, ports: [{port: 22}, {port: 8080}]}]
"""
_FILES = 5_000
_SSH = (
    *("ssh", "-p", "22", "-o", "BatchMode=yes", "-o", "ConnectTimeout=60"),
    *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
)
#: The most memory that each virtiofsd has had, in KiB.
_VIRTIOFSD_MEMORY = (
    "grep -lx virtiofsd /proc/[0-9]*/comm | while read -r file; do "
    "sed -n 's/VmHWM:[^0-9]*\\([0-9]*\\) kB/\\1/p' \"${file%comm}status\"; done"
)


def _given(directory: Path) -> str:
    """Files for the guest, in `given`; the checksum of all that is in them."""
    files, whole = directory / "given", hashlib.sha256()
    files.mkdir()
    for number in range(_FILES):
        content = f"{number}\n".encode() * (1 + number % 7)
        (files / f"{number:05}").write_bytes(content)
        whole.update(content)
    return whole.hexdigest()


def _as_the_kubelet_gives_it(directory: Path) -> None:
    """A volume's owner and group: those of the pod's fsGroup, to read and to write."""
    for path in (directory, *directory.rglob("*")):
        shutil.chown(path, group=107)
        path.chmod(path.stat().st_mode | (0o2070 if path.is_dir() else 0o060))


def test_a_guest_mounts_volumes_answers_probes_and_lets_in_whom_its_secrets_name(
    launcher_container: Container, tmp_path: Path
) -> None:
    objects, console, key = _objects(VM_WITH_AN_AGENT, launcher_container), tmp_path / "console", tmp_path / "key"
    images = {"guest:1": _guest_image(launcher_container, tmp_path / "guest")}
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    volumes = {name: tmp_path / f"volume-{name}" for name in ("data", "keys", "words")}
    for directory in volumes.values():
        directory.mkdir()
    (volumes["keys"] / "mine.pub").write_text(key.with_suffix(".pub").read_text())
    (volumes["words"] / "root").write_text("a word\n")
    checksum = _given(volumes["data"])
    for directory in volumes.values():
        _as_the_kubelet_gives_it(directory)
    with running(objects, launcher_container.root(), tmp_path, images, volumes) as pod:
        pod.until("it runs", lambda: "INFO default_vm is running" in pod.log.read_text(), 60)
        with pod.executing("gpu-launcher", "ctl", "console", into=console):
            assert not pod.is_ready(), "its agent is not there yet"
            pod.until("the guest is up", lambda: "GUEST ready" in console.read_text(errors="replace"), 900)
        assert pod.answers("livenessProbe")
        assert not pod.is_ready(), "the file is not there"
        assert pod.exec("gpu-launcher", "ctl", "guest", "exec", "--", "touch", "/run/healthy") == ""
        assert pod.is_ready()
        pod.until("the key is set", lambda: "has set 1 ssh keys of root" in pod.log.read_text(), 60)
        pod.until("the password is set", lambda: "has set the password of root" in pod.log.read_text(), 60)
        shadow = pod.exec("gpu-launcher", "ctl", "guest", "exec", "--", "grep", "-c", "^root:[$]", "/etc/shadow")
        hello = pod.from_outside(*_SSH, "-i", key, f"root@{ADDRESS}", "echo hello from $(hostname)")
        who = _who(pod)
        memory = pod.exec("sh", "-c", _VIRTIOFSD_MEMORY)
        os.kill(pod.pids_of("virtiofsd")[0], signal.SIGKILL)
        code = pod.parent.wait(90)
        log = pod.log.read_text()
    said = [line for line in console.read_text(errors="replace").splitlines() if line.startswith("GUEST ")]
    assert {f"GUEST reads {checksum}", f"GUEST makes {_FILES}", "GUEST writes data"} < set(said)
    assert "GUEST mounts shown mine.pub" in said
    assert "GUEST writes shown" not in said
    taken = volumes["data"] / "taken"
    assert sorted(path.name for path in taken.iterdir()) == [f"{number:05}" for number in range(_FILES)]
    assert all(path.read_text() == f"{path.name}\n" for path in taken.iterdir())
    assert {path.stat().st_uid for path in taken.iterdir()} == {107}
    assert (shadow, hello) == ("1\n", "hello from (none)\n")
    assert who["virtiofsd"] == ("107", 0)
    assert all(int(line) < 80 << 10 for line in memory.split()), memory  # KiB: what its pod has for it
    assert "the guest has lost the volume" in log
    assert log.endswith(f"ERROR default_vm has ended: {Ending.FILES_LOST.words}\n")
    assert code == Ending.FILES_LOST.code
