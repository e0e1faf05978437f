"""A real QEMU opens what was made for it, by the pod's own paths: /run is a directory of the test's there."""

import os
import signal
from pathlib import Path

import pytest

from launcher.vm import paths
from tests.launcher.vm.volumes.pods import mount, qcow2
from tests.processes import running

VM = """\
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: vm, uid: 5f0c1a52-6c0f-4a86-9d2b-3a2c8f0b7d24}
spec:
  terminationGracePeriodSeconds: 0
  domain:
    memory: {guest: 128Mi}
    firmware: {bootloader: {efi: {secureBoot: false, persistent: true}}}
    devices:
      tpm: {persistent: true}
      autoattachPodInterface: false
      disks:
      - {name: system, disk: {bus: virtio}}
      - {name: scratch, disk: {bus: virtio}}
      - {name: seed, cdrom: {}}
      - {name: settings, cdrom: {}}
  volumes:
  - {name: system, containerDisk: {image: debian}}
  - {name: scratch, emptyDisk: {capacity: 1Gi}}
  - {name: seed, cloudInitNoCloud: {userData: "#cloud-config"}}
  - {name: settings, configMap: {name: settings}}
"""

MADE = (
    paths.container_disk(0),
    paths.overlay("system"),
    paths.empty_disk("scratch"),
    paths.cloud_init_iso("noCloud", "default", "vm"),
    paths.iso("config-map", "settings"),
)


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace needs root; in a user's own, libvirt starts no QEMU")
def test_a_guest_has_its_disks_its_variables_and_its_tpm_and_leaves_what_is_to_stay(short_dir: Path) -> None:
    run = short_dir / "run"

    def here(place: str) -> Path:
        return run / place.removeprefix("/var").removeprefix("/run/")

    vm = short_dir / "vm.yaml"
    vm.write_text(VM)
    qcow2(here(paths.image_volume("system")) / "disk" / "disk.qcow2")
    mount(Path("/"), str(here(paths.mounted("config-map", "settings"))), {"key": b"value"})
    # The machine's own authority is the user's tss, who makes the TPMs of other libvirts.
    lib, state = run / "lib", run / "lib" / Path(paths.TPM_STATE).name
    for directory in (state, lib / Path(paths.SWTPM_CA).name):
        directory.mkdir(parents=True)
    mounts = 'mount --bind "$0/lib" /var/lib && mount --bind "$0" /run && exec "$@"'
    within = ("unshare", "--mount", "sh", "-c", mounts, run)
    with running("gpu-launcher", "run", "--vm", vm, "--emulation", within=within) as launcher:
        launcher.wait_for_line("default_vm is running")
        assert [place for place in MADE if not os.path.lexists(here(place))] == []
        launcher.send(signal.SIGTERM)
        assert launcher.end() == 0, launcher.log
    assert [place for place in MADE if os.path.lexists(here(place))] == []
    assert here(f"{paths.NVRAM}/vm_VARS.fd").stat().st_size > 0
    assert [path.name for path in state.glob("*/tpm2/*.permall")] == ["tpm2-00.permall"]
