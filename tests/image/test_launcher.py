"""gpu-launcher's image, as `make image` has just written it, in the Pod that `gpu-launcher pod` prints: a VM's life."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


@contextmanager
def _pod(vm: str, container: Container, directory: Path) -> Iterator[RunningPod]:
    """The pod of a VM, with the guest's disk as the image guest:1: a qcow2 image that the launcher's qemu-img makes."""
    (container.out / "vm.yaml").write_text(vm)
    objects = yaml.safe_load_all(container.run("gpu-launcher", "pod", "/out/vm.yaml"))
    image, own = directory / "guest" / "disk", directory / "pod"
    image.mkdir(parents=True)
    own.mkdir()
    shutil.copy(guest_disk(), container.out / "disk.raw")
    container.run("qemu-img", "convert", "-O", "qcow2", "/out/disk.raw", "/out/disk.qcow2")
    shutil.move(container.out / "disk.qcow2", image)
    images = {"guest:1": image.parent}
    with running(objects, container.root(), own, images) as pod:
        yield pod


def test_a_vm_boots_in_its_pod_with_all_that_it_asks_for_and_shuts_down_when_asked(
    launcher_container: Container, tmp_path: Path
) -> None:
    console = tmp_path / "console"
    with _pod(VM, launcher_container, tmp_path) as pod:
        pod.until("it is ready", pod.is_ready, 60)
        with pod.executing("gpu-launcher", "ctl", "console", into=console) as joined:
            pod.until("the guest is up", lambda: "GUEST ready" in console.read_text(errors="replace"), 120)
            state = pod.exec("gpu-launcher", "ctl", "state")
            fetch = f"import urllib.request as r; print(r.urlopen('http://{ADDRESS}:8080/').read().decode(), end='')"
            page = pod.exec("python3", "-c", fetch)
            assert pod.terminate(60) == 0
            assert joined.wait(10) == 0
        log = pod.log.read_text()
    words = console.read_text(errors="replace").splitlines()
    said = [line for line in words if line.startswith("GUEST ")]
    assert "GUEST firmware EFI" in said
    assert "GUEST TPM 2" in said
    assert f"GUEST address {ADDRESS}" in said  # passt gives the guest the pod's own
    assert "GUEST user-data #cloud-config of the test" in said
    assert page.splitlines() == said[:-1]
    assert said[-1] == "GUEST power button"
    assert state == "default/vm: running\n"
    assert log.endswith("INFO default_vm has ended: the guest has powered itself off\n")
