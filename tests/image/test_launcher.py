"""gpu-launcher's image, as `make image` has just written it, in the Pod that `gpu-launcher pod` prints: a VM's life."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.image.container import Container
from tests.image.guest import guest_disk
from tests.image.pod import ADDRESS, RunningPod, running

VM = """\
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata:
  name: vm
  annotations: {gpu-launcher.dev/allow-emulation: "true"}
spec:
  terminationGracePeriodSeconds: 60
  networks: [{name: default, pod: {}}]
  volumes:
  - {name: root, containerDisk: {image: "guest:1"}}
  - {name: seed, cloudInitNoCloud: {userData: "#cloud-config of the test"}}
  domain:
    memory: {guest: 512Mi}
    cpu: {model: qemu64}
    firmware: {bootloader: {efi: {secureBoot: false}}}
    devices:
      disks: [{name: root, disk: {bus: virtio}}, {name: seed, disk: {bus: virtio}}]
      tpm: {}
      interfaces: [{name: default, passt: {}, ports: [{port: 8080}]}]
"""


# A disk in a directory of the node's is root's.
VM_OF_ROOT = """\
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
#: What each process of the container is, as whom, and with which capabilities.
_WHO = "grep -hE '^(Name|Uid|CapEff):' /proc/[0-9]*/status | paste - - -"


def _objects(vm: str, container: Container) -> list[dict[str, Any]]:
    """What the image's own `gpu-launcher pod` prints."""
    (container.out / "vm.yaml").write_text(vm)
    return list(yaml.safe_load_all(container.run("gpu-launcher", "pod", "/out/vm.yaml")))


def _added(objects: list[dict[str, Any]]) -> list[str]:
    """The capabilities of the pod's container."""
    (pod,) = (manifest for manifest in objects if manifest["kind"] == "Pod")
    added: list[str] = pod["spec"]["containers"][0]["securityContext"]["capabilities"].setdefault("add", [])
    return added


def _guest_image(container: Container, directory: Path) -> Path:
    """What a containerDisk's image is: a qcow2 image of the guest's disk, by the image's own qemu-img."""
    disk = directory / "disk"
    disk.mkdir(parents=True)
    shutil.copy(guest_disk(), container.out / "disk.raw")
    container.run("qemu-img", "convert", "-O", "qcow2", "/out/disk.raw", "/out/disk.qcow2")
    shutil.move(container.out / "disk.qcow2", disk)
    return directory


def _who(pod: RunningPod) -> dict[str, tuple[str, int]]:
    """The user and the effective capabilities of each program in the pod."""
    lines = (line.split() for line in pod.exec("sh", "-c", _WHO).splitlines())
    return {words[1]: (words[3], int(words[-1], 16)) for words in lines}


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
            fetch = f"import urllib.request as r; print(r.urlopen('http://{ADDRESS}:8080/').read().decode(), end='')"
            page = pod.exec("python3", "-c", fetch)
            who = _who(pod)
            assert pod.terminate(60) == 0
            assert joined.wait(10) == 0
        log = pod.log.read_text()
    said = [line for line in console.read_text(errors="replace").splitlines() if line.startswith("GUEST ")]
    assert {"GUEST firmware EFI", "GUEST TPM 2"} < set(said)
    assert "GUEST user-data #cloud-config of the test" in said
    assert f"GUEST address {ADDRESS}" in said  # passt gives the guest the pod's own
    assert page.splitlines() == said[:-1]
    assert said[-1] == "GUEST power button"
    assert state == "default/vm: running\n"
    assert log.endswith("INFO default_vm has ended: as requested\n")
    assert {"gpu-launcher", "passt", "qemu-system-x86", "swtpm"} <= set(who)
    assert set(who.values()) == {("107", 0)}, "nobody has a capability, or is another user"


def test_a_vm_that_needs_root_has_the_pods_capabilities_and_its_network_is_nobodys(
    launcher_container: Container, tmp_path: Path
) -> None:
    objects = _objects(VM_OF_ROOT.format(directory=tmp_path), launcher_container)
    with running(objects, launcher_container.root(), tmp_path, {}) as pod:
        pod.until("it is ready", pod.is_ready, 60)
        who = _who(pod)
        assert pod.terminate(30) == 0
    assert (who["qemu-system-x86"][0], who["swtpm"][0]) == ("0", "0")
    assert who["passt"] == ("65534", 0)
    assert (tmp_path / "data.img").stat().st_size == 1 << 20


@pytest.mark.parametrize("capability", ["DAC_OVERRIDE", "SETGID", "SETPCAP", "SETUID"])
def test_without_any_of_roots_capabilities_libvirt_starts_no_qemu(
    launcher_container: Container, tmp_path: Path, capability: str
) -> None:
    objects = _objects(VM_OF_ROOT.format(directory=tmp_path), launcher_container)
    _added(objects).remove(capability)
    with running(objects, launcher_container.root(), tmp_path, {}) as pod:
        assert pod.parent.wait(30) == 1
        assert "cannot apply process capabilities" in pod.log.read_text()
