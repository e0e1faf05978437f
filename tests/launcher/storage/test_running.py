"""A real QEMU opens what was made for it, at the pod's places on this machine."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from launcher import paths
from launcher.storage.places import directory
from tests.launcher.storage.pods import mount, qcow2
from tests.processes import running

# On a file system without O_DIRECT, as tmpfs was before Linux 6.6, a disk has to have a cache.
VM = """\
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: {name}, uid: {uid}}}
spec:
  terminationGracePeriodSeconds: 0
  domain:
    memory: {{guest: 128Mi}}
    firmware: {{bootloader: {{efi: {{secureBoot: false, persistent: true}}}}}}
    devices:
      tpm: {{persistent: true}}
      autoattachPodInterface: false
      disks:
      - {{name: {name}-system, disk: {{bus: virtio}}, cache: writethrough}}
      - {{name: {name}-scratch, disk: {{bus: virtio}}, cache: writethrough}}
      - {{name: {name}-seed, cdrom: {{}}, cache: writethrough}}
      - {{name: {name}-settings, cdrom: {{}}, cache: writethrough}}
  volumes:
  - {{name: {name}-system, containerDisk: {{image: debian}}}}
  - {{name: {name}-scratch, emptyDisk: {{capacity: 1Gi}}}}
  - {{name: {name}-seed, cloudInitNoCloud: {{userData: "#cloud-config"}}}}
  - {{name: {name}-settings, configMap: {{name: settings}}}}
"""


@pytest.fixture
def name() -> Iterator[str]:
    """A VM that is nobody else's, with what the kubelet would mount for it."""
    name = f"test-{uuid4().hex[:8]}"
    image = Path(paths.image_volume(f"{name}-system"))
    settings = Path(paths.mounted("config-map", f"{name}-settings"))
    with ExitStack() as mounted:
        for place in (image, settings):
            mounted.enter_context(directory(place))
        disk = qcow2(image / "disk" / "disk.qcow2")
        mounted.callback(disk.parent.rmdir)
        mounted.callback(disk.unlink)
        mount(Path("/"), str(settings), {"key": b"value"})
        mounted.callback(lambda: _empty(settings))
        yield name


def _empty(place: Path) -> None:
    for path in sorted(place.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()


def test_a_guest_has_its_disks_its_variables_and_its_tpm_and_leaves_what_is_to_stay(name: str, short_dir: Path) -> None:
    vm = short_dir / "vm.yaml"
    vm.write_text(VM.format(name=name, uid=uuid4()))
    uri = f"qemu:///embed?root={short_dir}"
    made = [
        Path(place)
        for place in (
            paths.container_disk(0),
            paths.overlay(f"{name}-system"),
            paths.empty_disk(f"{name}-scratch"),
            paths.cloud_init_iso("noCloud", "default", name),
            paths.iso("config-map", f"{name}-settings"),
        )
    ]
    variables = Path(paths.NVRAM, f"{name}_VARS.fd")
    with directory(variables.parent):
        try:
            with running("gpu-launcher", "run", "--vm", vm, "--connect", uri, "--emulation") as run:
                run.wait_for_line(f"default_{name} is running")
                assert [path for path in made if not path.is_file()] == []
                run.send(signal.SIGTERM)
                assert run.end() == 0, run.log
            assert variables.stat().st_size > 0
        finally:
            variables.unlink(missing_ok=True)
    states = short_dir / Path(paths.SWTPM).relative_to(paths.LIBVIRT_ROOT)
    assert [path.name for path in states.glob("*/tpm2/*.permall")] == ["tpm2-00.permall"]
    assert [path for path in made if path.exists()] == []
